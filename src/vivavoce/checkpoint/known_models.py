"""The published models by name: their repositories on the hubs, the files that they need, and their local folders."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE, SPEAKER_ENCODER, YAML_OF, read_json, speech_tokenizer_of
from vivavoce.errors import CheckpointError, DownloadError, InvalidRequest, ModelNotFound, UnsupportedModel

HOME_VARIABLE = "VIVAVOCE_HOME"
RECORD = "vivavoce-download.json"
_DOT_IN_CACHE = "___"

# Other files in the repositories are not needed: archives, exports for TensorRT, sample audio, and the initial weights
# of the language model in CosyVoice-BlankEN/model.safetensors, because llm.pt has the trained weights.
_NEEDED = re.compile(
    r"""
      (llm|flow|hift)(\.[\w-]+)?\.(pt|safetensors)      # llm.pt, llm.rl.pt, flow.cache.pt …
    | spk2info\.pt
    | campplus\.onnx
    | speech_tokenizer_v\d+\.onnx
    | cosyvoice\d*\.yaml
    | configuration\.json
    | CosyVoice-BlankEN/(config|generation_config|vocab|tokenizer_config|tokenizer)\.json
    | CosyVoice-BlankEN/merges\.txt
    | LICENSE[\w.-]*
    | README\.md
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class KnownModel:
    name: str
    generation: Generation
    hf_id: str
    modelscope_id: str
    summary: str
    num_bytes: int | None = None
    """Approximate size of the needed files; None if unknown."""
    licence: str = "Apache-2.0"


def _first_generation(name: str, summary: str) -> KnownModel:
    summary = f"CosyVoice, first generation: {summary}; 22.05 kHz"
    return KnownModel(name, Generation.V1, f"FunAudioLLM/{name}", f"iic/{name}", summary, num_bytes=2_300_000_000)


_PUBLISHED = (
    KnownModel(
        name="Fun-CosyVoice3-0.5B",
        generation=Generation.V3,
        hf_id="FunAudioLLM/Fun-CosyVoice3-0.5B-2512",
        modelscope_id="FunAudioLLM/Fun-CosyVoice3-0.5B-2512",
        summary="Fun-CosyVoice3: nine languages, voice cloning, instructions, streaming; 24 kHz",
        num_bytes=6_500_000_000,
    ),
    KnownModel(
        name="CosyVoice2-0.5B",
        generation=Generation.V2,
        hf_id="FunAudioLLM/CosyVoice2-0.5B",
        modelscope_id="iic/CosyVoice2-0.5B",
        summary="CosyVoice2: voice cloning, instructions, streaming; 24 kHz",
        num_bytes=3_085_869_618,
    ),
    _first_generation("CosyVoice-300M", "voice cloning"),
    _first_generation("CosyVoice-300M-SFT", "built-in speakers"),
    _first_generation("CosyVoice-300M-Instruct", "built-in speakers that follow instructions"),
)
KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType({model.name: model for model in _PUBLISHED})

_WRITTEN_MODEL = re.compile(r"(?:([A-Za-z0-9_.-]{1,100})=)?(.+?)(?:[+](.+[.](?:pt|safetensors)))?")


@dataclass(frozen=True)
class WrittenModel:
    """A model as written on the command line or in settings: `[NAME=]MODEL[+FILE]`.

    model: a known name or a folder. name: its name in requests, or "" for `usual_name`. llm: a file with the weights of
    another language model of the same sizes."""

    model: str
    name: str = ""
    llm: Path | None = None

    def __str__(self) -> str:
        return f"{self.name and self.name + '='}{self.model}{'' if self.llm is None else f'+{self.llm}'}"

    def check_file(self) -> None:
        if self.llm is not None and not self.llm.is_file():
            raise CheckpointError(f"model: {self.llm} is not a file; name the weights of a language model")


def parse_model(text: str) -> WrittenModel:
    """Parse `[NAME=]MODEL[+FILE]`. If the whole text is the path of a folder, it is only MODEL, even with = or +."""
    found = _WRITTEN_MODEL.fullmatch(text)
    if found is None or Path(os.path.expanduser(text)).is_dir():
        return WrittenModel(text)
    name, model, llm = found.groups()
    return WrittenModel(model, name or "", None if llm is None else Path(os.path.expanduser(llm)))


def known_model(name: str) -> KnownModel:
    """Find a model by its name, its id on either hub, or its folder in ModelScope's cache; case does not matter."""
    wanted = name.casefold().replace(_DOT_IN_CACHE, ".")
    for model in KNOWN_MODELS.values():
        aliases = (model.name, model.hf_id, model.modelscope_id, model.hf_id.rpartition("/")[2])
        if wanted in {alias.casefold() for alias in aliases}:
            return model
    if wanted.endswith("cosyvoice-300m-25hz"):
        raise UnsupportedModel(
            f"model: {name} has 25 speech tokens a second; only the models of CosyVoice 1 with 50 are supported; "
            "use CosyVoice-300M, -SFT or -Instruct"
        )
    known = ", ".join(KNOWN_MODELS)
    raise ModelNotFound(f"model: {name!r} is neither a folder nor a known model; give a folder or one of {known}")


def usual_name(model: str) -> str:
    """Return the name, in requests, of a model without a NAME: "iic/CosyVoice2-0___5B" → "CosyVoice2-0.5B"."""
    return Path(model).name.replace(_DOT_IN_CACHE, ".")


def plain_name(name: str) -> str:
    """Return an id or folder in lower case, without its owner: "iic/CosyVoice2-0___5B" → "cosyvoice2-0.5b"."""
    return name.rpartition("/")[2].replace("___", ".").casefold()


def plain_names(name: str) -> set[str]:
    """Return all plain names of the model with this name; a published model has several."""
    own = plain_name(name)
    published = ({plain_name(one) for one in (model.name, model.hf_id, model.modelscope_id)} for model in _PUBLISHED)
    return next((names for names in published if own in names), {own})


def is_needed(path: str) -> bool:
    """Return whether a model needs this file; path: relative to the repository, with `/` between folders."""
    return _NEEDED.fullmatch(path) is not None


def missing_files(generation: Generation, paths: Collection[str]) -> list[str]:
    """List the needed files that `paths` lacks; .safetensors may replace .pt, and tokenizer.json vocab.json."""
    needed = [YAML_OF[generation], SPEAKER_ENCODER, speech_tokenizer_of(generation)]
    needed += ["llm.pt", "flow.pt", "hift.pt"]
    if generation is not Generation.V1:
        needed += [f"{BACKBONE}/config.json", f"{BACKBONE}/vocab.json"]
    others = {name: name.replace(".pt", ".safetensors").replace("vocab", "tokenizer") for name in needed}
    return [name for name, other in others.items() if name not in paths and other not in paths]


def user_folder(kind: Literal["data", "cache"]) -> Path:
    """Return `$VIVAVOCE_HOME`, else the user's data or cache folder. Raises InvalidRequest if the user has no home."""
    import platformdirs

    find = platformdirs.user_data_path if kind == "data" else platformdirs.user_cache_path
    try:
        home = os.environ.get(HOME_VARIABLE)
        return Path(home).expanduser() if home else find("vivavoce", appauthor=False)
    except RuntimeError:
        raise InvalidRequest(
            f"home: this user has no home directory; set {HOME_VARIABLE} to a folder for models and voices"
        ) from None


def models_home() -> Path:
    return user_folder("cache") / "models"


def model_folder(model: KnownModel) -> Path:
    return models_home() / model.name


def find_model(name_or_path: str | Path) -> Path:
    """Find the folder of a model: an existing folder, or the download of a known model. Raises ModelNotFound or
    UnsupportedModel if the name is unknown, and DownloadError if the download is missing or incomplete."""
    folder = Path(os.path.expanduser(name_or_path))
    if (found := _as_spelled(folder)) is not None:
        return found
    model = known_model(str(name_or_path))
    folder = model_folder(model)
    record = read_record(folder)
    if record is not None and record.is_whole(folder):
        return folder
    if (found := _as_spelled(folder)) not in (None, folder):
        return found
    state = "complete in" if is_begun(folder) else "downloaded to"
    raise DownloadError(
        f"model: {model.name} is not {state} {folder}; type `vivavoce download {model.name}`, or give the "
        "path of a folder that holds it"
    )


def _as_spelled(folder: Path) -> Path | None:
    """Return the folder of this name, or with its name as in ModelScope's cache (CosyVoice2-0___5B); else None."""
    spellings = (folder, folder.with_name(folder.name.replace(".", _DOT_IN_CACHE)) if folder.name else folder)
    return next((one for one in spellings if one.is_dir()), None)


def is_begun(folder: Path) -> bool:
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return read_record(folder) is not None or any(is_needed(path.removesuffix(".part")) for path in paths)


@dataclass(frozen=True)
class FileRecord:
    size: int
    sha256: str


@dataclass(frozen=True)
class DownloadRecord:
    """The record of a download. It is written last, so its presence means that the download is complete."""

    model: str
    source: str
    repository: str
    revision: str
    files: Mapping[str, FileRecord]

    def is_whole(self, folder: Path) -> bool:
        return all(size_of(folder / path) == file.size for path, file in self.files.items())


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def read_record(folder: Path) -> DownloadRecord | None:
    try:
        fields = read_json(folder / RECORD)
        files = {path: FileRecord(int(file["size"]), str(file["sha256"])) for path, file in fields["files"].items()}
        named = {key: str(fields[key]) for key in ("model", "source", "repository", "revision")}
        # An update deletes the files in the record, so a forged record that names files outside the folder is refused.
        return DownloadRecord(files=files, **named) if all(map(is_needed, files)) else None
    except (CheckpointError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return None
