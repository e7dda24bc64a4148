"""The official models by name: where the hubs keep them, what of them is needed, and where they lie on this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE, SPEAKER_ENCODER, YAML_OF, read_json, speech_tokenizer_of
from vivavoce.errors import CheckpointError, DownloadError, ModelNotFound, UnsupportedModel
from vivavoce.files import replace_file

HOME_VARIABLE = "VIVAVOCE_HOME"
RECORD = "vivavoce-download.json"

# The repositories also hold archives, TensorRT and estimator exports, sample audio, and the language model's
# starting weights (CosyVoice-BlankEN/model.safetensors), every value of which llm.pt replaces.
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
    """One published model."""

    name: str
    generation: Generation
    hf_id: str
    modelscope_id: str
    summary: str
    num_bytes: int | None = None
    """Of the needed files when they were last looked up; None: never."""
    licence: str = "Apache-2.0"
    """As the publisher names it."""


_FIRST = "CosyVoice, first generation: "
_INSTRUCTIONS = "voice cloning, instructions, streaming; 24 kHz"
_PUBLISHED = (
    ("Fun-CosyVoice3-0.5B", "-2512", "v3", "FunAudioLLM", f"Fun-CosyVoice3: nine languages, {_INSTRUCTIONS}"),
    ("CosyVoice2-0.5B", "", "v2", "iic", f"CosyVoice2: {_INSTRUCTIONS}"),
    ("CosyVoice-300M", "", "v1", "iic", f"{_FIRST}voice cloning; 22.05 kHz"),
    ("CosyVoice-300M-SFT", "", "v1", "iic", f"{_FIRST}built-in speakers; 22.05 kHz"),
    ("CosyVoice-300M-Instruct", "", "v1", "iic", f"{_FIRST}built-in speakers that follow instructions; 22.05 kHz"),
)
"""Name, what the hubs add to it, generation, owner on ModelScope, summary."""
_NUM_BYTES = {"CosyVoice2-0.5B": 3_085_869_618}
KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        name: KnownModel(
            *(name, Generation(generation), f"FunAudioLLM/{name}{more}", f"{owner}/{name}{more}", summary),
            num_bytes=_NUM_BYTES.get(name),
        )
        for name, more, generation, owner, summary in _PUBLISHED
    }
)
"""Every published model by its name; the first one is what new users are told of."""


def known_model(name: str) -> KnownModel:
    """Look up a model by its name or by its id on either hub, in upper or lower case."""
    wanted = name.casefold()
    for model in KNOWN_MODELS.values():
        if wanted in {alias.casefold() for alias in (model.name, model.hf_id, model.modelscope_id)}:
            return model
    if wanted.endswith("cosyvoice-300m-25hz"):
        raise UnsupportedModel(
            f"model: {name} has 25 speech tokens a second; of CosyVoice 1 only those of 50 are known: CosyVoice-300M, "
            "-SFT and -Instruct, use one of them"
        )
    known = ", ".join(KNOWN_MODELS)
    raise ModelNotFound(f"model: {name!r} is neither a folder nor a known model; give a folder or one of {known}")


def is_needed(path: str) -> bool:
    """Whether inference reads the file `path` (relative to the repository, `/` between folders)."""
    return _NEEDED.fullmatch(path) is not None


def missing_files(generation: Generation, paths: Collection[str]) -> list[str]:
    """What a model of this generation cannot speak without and `paths` does not name; other spellings count."""
    needed = [YAML_OF[generation], SPEAKER_ENCODER, speech_tokenizer_of(generation)]
    needed += ["llm.pt", "flow.pt", "hift.pt"]
    if generation is not Generation.V1:
        needed += [f"{BACKBONE}/config.json", f"{BACKBONE}/vocab.json"]
    others = {name: name.replace(".pt", ".safetensors").replace("vocab", "tokenizer") for name in needed}
    return [name for name, other in others.items() if name not in paths and other not in paths]


def check_path(path: str) -> None:
    """Refuse a name that would be written outside of the model folder."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise DownloadError(f"file: the hub lists {path!r}, which is no safe file name; do not use this hub")


def models_home() -> Path:
    """The folder of downloaded models: `$VIVAVOCE_HOME/models`, else one in the user's cache."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser() / "models"
    from platformdirs import user_cache_path

    return user_cache_path("vivavoce", appauthor=False) / "models"


def model_folder(model: KnownModel) -> Path:
    """Where `model` is downloaded to unless another folder is named."""
    return models_home() / model.name


def find_model(name_or_path: str | Path) -> Path:
    """The folder of a model: the given folder, or where a known name was downloaded to; no network.

    ModelNotFound, UnsupportedModel: neither a folder nor a known name; DownloadError: it was not downloaded to its end.
    """
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    model = known_model(str(name_or_path))
    folder = model_folder(model)
    record = read_record(folder)
    if record is not None and record.is_whole(folder):
        return folder
    state = "complete in" if is_begun(folder) else "downloaded to"
    raise DownloadError(
        f"model: {model.name} is not {state} {folder}; type `vivavoce download {model.name}`, or give the "
        "path of a folder that holds it"
    )


def is_begun(folder: Path) -> bool:
    """Whether a download has brought anything: one that failed at once leaves an empty folder."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return read_record(folder) is not None or any(is_needed(path.removesuffix(".part")) for path in paths)


@dataclass(frozen=True)
class FileRecord:
    """One file as it was written."""

    size: int
    sha256: str


@dataclass(frozen=True)
class DownloadRecord:
    """What a folder was filled with; written last, so its presence means that every file was complete."""

    model: str
    source: str
    repository: str
    revision: str
    files: Mapping[str, FileRecord]

    def is_whole(self, folder: Path) -> bool:
        """Whether every file is still there with its size; contents are not read again."""
        return all(size_of(folder / path) == file.size for path, file in self.files.items())


def size_of(path: Path) -> int:
    """Bytes of a file, -1 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def read_record(folder: Path) -> DownloadRecord | None:
    """The note in `folder`; None where there is none or it cannot be understood."""
    try:
        fields = read_json(folder / RECORD)
        files = {path: FileRecord(int(file["size"]), str(file["sha256"])) for path, file in fields["files"].items()}
        named = {key: str(fields[key]) for key in ("model", "source", "repository", "revision")}
        # An update removes files that the record names: a stranger's record must not lead out of the folder.
        return DownloadRecord(files=files, **named) if all(map(is_needed, files)) else None
    except (CheckpointError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return None


def write_record(folder: Path, record: DownloadRecord) -> None:
    """Write the note, replacing an older one in one step."""
    replace_file(folder / RECORD, json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n")
