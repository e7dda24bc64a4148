"""Model folders in the official layout: their generation, files, model card and fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from vivavoce.checkpoint.config import Generation, SilentTokens
from vivavoce.errors import CheckpointError, ModelNotFound

YAML_OF = {
    Generation.V1: "cosyvoice.yaml",
    Generation.V2: "cosyvoice2.yaml",
    Generation.V3: "cosyvoice3.yaml",
}
BACKBONE = "CosyVoice-BlankEN"
CARD = "vivavoce.json"
SPEAKER_ENCODER = "campplus.onnx"
SPEAKERS = "spk2info.pt"
MAX_JSON_BYTES = 32_000_000
MOST_FLOW_STEPS = 100
_LFS_POINTER = b"version https://git-lfs"
_IDENTITY_FILES = (SPEAKER_ENCODER, "speech_tokenizer_v[0-9].onnx", "cosyvoice*.yaml")


class TextStream(str, Enum):
    INTERLEAVED = "interleaved"
    """Blocks of text and speech tokens alternate in a sequence, see `LMConfig`; this is the official way."""
    SENTENCES = "sentences"
    """Each sentence is spoken as soon as it is complete: for models that hardly learned from interleaved text."""


@dataclass(frozen=True)
class SpeakerCard:
    """A built-in voice on the model's card: its language (ISO 639 code), sex, a description of its sound, and the
    transcript of its reference recording. Each field is "" if unknown."""

    language: str = ""
    sex: str = ""
    description: str = ""
    transcript: str = ""


@dataclass(frozen=True)
class ModelCard:
    """The model card: content of the optional file `vivavoce.json`, which official folders do not have."""

    name: str
    description: str = ""
    trained: bool = True
    demo: bool = False
    """Whether the model was trained only to show how the program works, and does not sound good."""
    scripts: frozenset[str] | None = None
    """Unicode scripts that the model was trained to read; None means all scripts."""
    languages: tuple[str, ...] = ("zh", "en", "ja", "ko")
    """Languages that the model speaks, as ISO 639 codes; the default is the list of CosyVoice 1 and 2."""
    text_stream: TextStream = TextStream.INTERLEAVED
    instructions: bool = True
    """Whether the model was trained to follow instructions; other models would speak them aloud."""
    guarded: bool = False
    """The default of the option `guard`: true for models on which the guard's false alarms were measured."""
    flow_steps: int | None = None
    """Number of Euler steps, for a flow that needs no more; None: ten steps, as in the official code."""
    silent: SilentTokens | None = None
    """The model's silent speech tokens; None: those of its generation."""
    voices: Mapping[str, SpeakerCard] = field(default_factory=dict)
    """Built-in voices by name; the first one is the default voice."""


def detect_generation(folder: Path) -> Generation:
    """Return the generation of a model folder, which its yaml file shows. If the folder has several yaml files, only
    one of them may have its generation's speech tokenizer in the folder.

    Raises ModelNotFound if `folder` is not a folder, and CheckpointError if no yaml file or several fit."""
    if not folder.is_dir():
        raise ModelNotFound(f"model: {str(folder)!r} is not a folder; give an official CosyVoice folder")
    found = [generation for generation, name in YAML_OF.items() if (folder / name).is_file()]
    if len(found) > 1:
        fitting = [generation for generation in found if (folder / speech_tokenizer_of(generation)).is_file()]
        if len(fitting) != 1:
            names = " and ".join(YAML_OF[generation] for generation in found)
            raise CheckpointError(f"model: {folder.absolute().name} holds {names}; remove the files of other models")
        found = fitting
    if found:
        return found[0]
    raise CheckpointError(
        f"model: {folder.absolute().name} holds none of {', '.join(YAML_OF.values())}; download the whole model folder"
    )


def speech_tokenizer_of(generation: Generation) -> str:
    return f"speech_tokenizer_{generation.value}.onnx"


def read_card(folder: Path) -> ModelCard:
    path, languages = folder / CARD, ModelCard.languages
    if (folder / YAML_OF[Generation.V3]).is_file():
        languages += ("de", "es", "fr", "it", "ru")
    if not path.is_file():
        here = folder.absolute()  # in Hugging Face's cache: models--OWNER--NAME/snapshots/COMMIT
        _, cached, name = here.parent.parent.name.rpartition("--")
        name = name if cached and here.parent.name == "snapshots" else here.name
        return ModelCard(name=name, languages=languages)
    data = read_json(path)
    scripts, stream = data.get("scripts"), data.get("text_stream", TextStream.INTERLEAVED)
    if stream not in (known := [one.value for one in TextStream]):
        raise CheckpointError(
            f"{CARD}: text_stream: expected one of {', '.join(known)}, found {repr(stream)[:60]}; correct it, or leave "
            f"it out for {TextStream.INTERLEAVED.value}"
        )
    steps = data.get("flow_steps")
    if steps is not None and (type(steps) is not int or not 1 <= steps <= MOST_FLOW_STEPS):
        raise CheckpointError(
            f"{CARD}: flow_steps: expected a whole number from 1 to {MOST_FLOW_STEPS}, found {repr(steps)[:60]}; "
            "correct it, or leave it out for ten"
        )
    return ModelCard(
        name=str(data.get("name", folder.name)),
        description=str(data.get("description", "")),
        trained=bool(data.get("trained", True)),
        demo=bool(data.get("demo", False)),
        scripts=frozenset(str(s) for s in scripts) if isinstance(scripts, list) else None,
        languages=tuple(map(str, data.get("languages", languages))),
        text_stream=TextStream(stream),
        instructions=bool(data.get("instructions", True)),
        guarded=bool(data.get("guarded", False)),
        flow_steps=steps,
        silent=_silent(data["silence"]) if "silence" in data else None,
        voices={str(name): _speaker(told) for name, told in _mapping(data.get("voices")).items()},
    )


def _silent(told: Any) -> SilentTokens:
    values, official = _mapping(told), SilentTokens()
    tokens = values.get("tokens")
    longest, first = (values.get(name, getattr(official, name)) for name in ("longest", "first"))
    valid = isinstance(tokens, list) and all(type(one) is int and one >= 0 for one in (*tokens, longest, first))
    if not valid or longest < first:
        raise CheckpointError(
            f'{CARD}: silence: expected {{"tokens": [ids], "longest": number, "first": number up to longest}}, found '
            f"{repr(told)[:60]}; correct it, or leave it out"
        )
    return SilentTokens(tuple(values["tokens"]), longest, first)


def is_pointer(path: Path) -> bool:
    """Return whether the file is a git-lfs pointer instead of the real file."""
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


def refuse_pointer(path: Path) -> None:
    """Raise CheckpointError if the file is a git-lfs pointer; ignore an unreadable file: its reader will fail."""
    with suppress(OSError):
        if is_pointer(path):
            raise CheckpointError(
                f"{path.name}: is a pointer of git-lfs, not the file itself; type `git lfs pull` in {path.parent}"
            )


def _speaker(told: Any) -> SpeakerCard:
    return SpeakerCard(**{one.name: str(_mapping(told).get(one.name, "")) for one in fields(SpeakerCard)})


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_json(path: Path, remedy: str = "download the file again") -> dict[str, Any]:
    """Read a JSON object. remedy: advice in the message of the CheckpointError if it cannot be read."""
    refuse_pointer(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JSON_BYTES + 1)
        if len(content) > MAX_JSON_BYTES:
            raise CheckpointError(f"{path.name}: more than {MAX_JSON_BYTES} bytes, which is the limit; {remedy}")
        data = json.loads(content.decode("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name}: is missing in {path.parent}; {remedy}") from None
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path.name}: not valid JSON; {remedy}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name}: holds no settings; {remedy}")
    return data


def fingerprint(folder: Path) -> str:
    """Return a hash, 16 hexadecimal digits, of the ONNX and yaml files; this reads 0.5 GB of a published model.

    The hash does not include modification times: it is stored in voices, so copying the files must not change it."""
    identity = hashlib.sha256()
    for pattern in _IDENTITY_FILES:
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise CheckpointError(f"model: {pattern} is missing in {folder.name}; download the whole folder")
        for path in paths:
            try:
                identity.update(f"{path.name}\0{sha256_of(path)}\n".encode())
            except OSError as error:
                raise CheckpointError(
                    f"model: {path.name} cannot be read ({error.strerror}); check the model folder"
                ) from None
    return identity.hexdigest()[:16]


def sha256_of(path: Path, begun: Any = None) -> str:
    """Return a file's SHA-256 in hexadecimal; begun: a hash object of the bytes before this file."""
    digest = begun or hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return str(digest.hexdigest())
