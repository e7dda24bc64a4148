"""What a model folder holds and what is wrong with it: all of it, and without loading a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, TypeVar

import torch
from torch import Tensor, nn

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.fingerprint import fingerprint
from vivavoce.checkpoint.folder import (
    BACKBONE,
    CARD,
    SPEAKER_ENCODER,
    SPEAKERS,
    SPEECH_TOKENIZER,
    YAML_OF,
    ModelCard,
    detect_generation,
    read_card,
    read_config,
)
from vivavoce.checkpoint.hub.locate import models_home
from vivavoce.checkpoint.hub.record import read_record, size_of
from vivavoce.checkpoint.hub.selection import is_needed
from vivavoce.checkpoint.names import FLOW_NAMES, LM_NAMES, VOCODER_NAMES, NameTable
from vivavoce.checkpoint.weights import find_part, fold_weight_norm, load_into, read_tensors
from vivavoce.errors import CheckpointError, VivavoceError
from vivavoce.models.flow.model import Flow
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.vocoder.hift import HiFT
from vivavoce.service.text.tokenizer import TextTokenizer
from vivavoce.service.voices.built_in import built_in_voices

_ONNX_FILES = (SPEECH_TOKENIZER, SPEAKER_ENCODER)
_WHOLE_TOKENIZER = f"{BACKBONE}/tokenizer.json"
_TOKENIZER_PARTS = tuple(f"{BACKBONE}/{name}" for name in ("vocab.json", "merges.txt", "tokenizer_config.json"))
_NETWORKS: Mapping[str, tuple[Callable[[ModelConfig], nn.Module], NameTable]] = MappingProxyType(
    {
        "llm": (lambda config: SpeechLM(config.lm), LM_NAMES),
        "flow": (lambda config: Flow(config.flow), FLOW_NAMES),
        "hift": (lambda config: HiFT(config.vocoder), VOCODER_NAMES),
    }
)
_LFS_POINTER = b"version https://git-lfs"

_VARINT, _BYTES = 0, 2
"""The wire types that the fields of an ONNX model have."""
_GRAPH = 7
"""The field of ModelProto that holds the network (onnx.proto3)."""
_MAX_VARINT_BYTES = 10

Found = TypeVar("Found")


@dataclass(frozen=True)
class ModelFile:
    """A file that inference reads; path: relative to the model folder."""

    path: str
    num_bytes: int


@dataclass(frozen=True)
class PartReport:
    """One network's weights as its file holds them."""

    name: str
    file: str
    num_parameters: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class ModelReport:
    """A model folder as it was found; None or empty where something cannot be read, which `problems` explains."""

    folder: Path
    card: ModelCard
    generation: str | None
    """v1, v2 or v3, by the yaml file that is there."""
    source: str | None
    """Hub, repository and revision of a download."""
    config: ModelConfig | None
    parts: tuple[PartReport, ...]
    files: tuple[ModelFile, ...]
    tokenizer_size: int | None
    """Text tokens, special ones included."""
    voices: tuple[str, ...]
    fingerprint: str | None
    problems: tuple[str, ...]
    """Everything that keeps the model from working; empty for a sound folder."""


def inspect_model(folder: Path) -> ModelReport:
    """Examine a model folder. What is wrong with it is reported, not raised.

    Every file that inference reads is checked as far as that needs no loading: the weights' names and shapes against
    the networks that the yaml describes, the ONNX files' outer structure. Weights stay on the disk; the ONNX files
    are read for the fingerprint (0.5 GB of a release).
    """
    return _Inspection(folder).report()


class _Inspection:
    """One folder's examination: problems are collected while the rest is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: list[str] = []
        self._files = tuple(_model_files(folder))
        self._usable = {file.path for file in self._files}

    def report(self) -> ModelReport:
        """Look at everything once."""
        folder = self._folder
        generation = next((known.value for known, name in YAML_OF.items() if (folder / name).is_file()), None)
        supported = self._attempt(lambda: detect_generation(folder)) is not None
        self._drop_unusable()
        if supported or (generation is None and self._files):
            self._find_missing()
        self._check_onnx()
        states = self._states()
        config = self._config(states) if supported else None
        if config is not None:
            for state in states:
                self._check_fit(state, config)
        return ModelReport(
            folder=folder,
            card=self._attempt(lambda: read_card(folder)) or ModelCard(folder.name),
            generation=generation,
            source=self._source(),
            config=config,
            parts=tuple(state.report() for state in states),
            files=self._files,
            tokenizer_size=self._tokenizer_size(),
            voices=tuple(self._attempt(lambda: built_in_voices(folder)) or ()) if self._has(SPEAKERS) else (),
            fingerprint=self._attempt(lambda: fingerprint(folder)) if generation and self._has(*_ONNX_FILES) else None,
            problems=tuple(self._problems),
        )

    def _attempt(self, read: Callable[[], Found]) -> Found | None:
        """What `read` returns, or None and its error among the problems."""
        try:
            return read()
        except VivavoceError as error:
            self._add(str(error))
        return None

    def _add(self, problem: str) -> None:
        plain = problem.removeprefix("model: ")
        if plain not in self._problems:
            self._problems.append(plain)

    def _has(self, *paths: str) -> bool:
        return self._usable.issuperset(paths)

    def _drop_unusable(self) -> None:
        starts = {file.path: _first_bytes(self._folder / file.path, len(_LFS_POINTER)) for file in self._files}
        pointers = [path for path, start in starts.items() if start == _LFS_POINTER]
        locked = [path for path, start in starts.items() if start is None]
        self._usable.difference_update(pointers, locked)
        if pointers:
            self._add(f"git-lfs pointers stand in for {', '.join(pointers)}; type `git lfs pull`")
        if locked:
            self._add(f"{', '.join(locked)} cannot be read; check the permissions")

    def _find_missing(self) -> None:
        tokenizer = () if (self._folder / _WHOLE_TOKENIZER).is_file() else _TOKENIZER_PARTS
        missing = [f"{part}.pt" for part in _NETWORKS if _part_path(self._folder, part) is None]
        required = (*_ONNX_FILES, f"{BACKBONE}/config.json", *tokenizer)
        missing += [path for path in required if not (self._folder / path).is_file()]
        if missing:
            self._add(f"missing {', '.join(missing)}; download the whole folder")

    def _check_onnx(self) -> None:
        for path in _ONNX_FILES:
            if self._has(path) and not is_whole_onnx(self._folder / path):
                self._add(f"{path} is cut off, or no ONNX model; download it again")

    def _states(self) -> list[_PartState]:
        """The weights of each part whose file can be read."""
        found = [self._state(part) for part in _NETWORKS]
        return [state for state in found if state is not None]

    def _state(self, part: str) -> _PartState | None:
        path = _part_path(self._folder, part)
        if path is None or not self._has(path.name):
            return None
        return self._attempt(lambda: _PartState(part, path, read_tensors(path)))

    def _config(self, states: Sequence[_PartState]) -> ModelConfig | None:
        if not self._has(f"{BACKBONE}/config.json"):
            return None
        flow_keys = next((state.tensors for state in states if state.part == "flow"), {})
        return self._attempt(lambda: read_config(self._folder, flow_keys))

    def _check_fit(self, state: _PartState, config: ModelConfig) -> None:
        self._attempt(lambda: state.check_fit(config))

    def _tokenizer_size(self) -> int | None:
        if not self._has(_WHOLE_TOKENIZER) and not self._has(*_TOKENIZER_PARTS):
            return None
        return self._attempt(lambda: len(TextTokenizer.from_folder(self._folder / BACKBONE)))

    def _source(self) -> str | None:
        record = read_record(self._folder)
        if record is None:
            return None
        changed = [path for path, file in record.files.items() if size_of(self._folder / path) != file.size]
        if changed:
            self._add(f"{', '.join(changed)}: not as downloaded; type `vivavoce download {record.model}`")
        return f"{record.source} {record.repository} at {record.revision}"


@dataclass(frozen=True, eq=False)
class _PartState:
    """The tensors of one weight file, mapped and not loaded."""

    part: str
    path: Path
    tensors: Mapping[str, Tensor]

    def check_fit(self, config: ModelConfig) -> None:
        """Compare names and shapes with the network of that configuration; neither takes any memory here."""
        build, names = _NETWORKS[self.part]
        with torch.device("meta"):
            network = build(config)
        shapes = {key: tensor.to("meta") for key, tensor in self.tensors.items()}
        if self.part == "hift":
            shapes = fold_weight_norm(shapes)
        load_into(network, shapes, names, self.path.name, torch.float32)

    def report(self) -> PartReport:
        """What the file holds."""
        unused = _NETWORKS[self.part][1].unused
        tensors = [tensor for key, tensor in self.tensors.items() if key not in unused]
        return PartReport(
            name=self.part,
            file=self.path.name,
            num_parameters=sum(tensor.numel() for tensor in tensors),
            dtypes=tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})),
        )


class ModelNames:
    """Which of some model folders a voice was extracted for; a folder is read when it is first compared."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._untried = list(folders)
        self._names: dict[str, str] = {}

    def of(self, identity: str) -> str | None:
        """The name of the model with that fingerprint; None if no folder has it."""
        while identity not in self._names and self._untried:
            folder = self._untried.pop(0)
            with suppress(VivavoceError):  # an incomplete folder has no identity
                self._names[fingerprint(folder)] = read_card(folder).name
        return self._names.get(identity)


def local_models() -> list[Path]:
    """The model folders in `models_home`, sorted by name."""
    return sorted({path.parent for yaml in YAML_OF.values() for path in models_home().glob(f"*/{yaml}")})


def is_whole_onnx(path: Path) -> bool:
    """Whether the file is one ONNX model from its first byte to its last.

    It is a protocol buffer: fields follow one another, each a tag and a number, or a tag, a length and bytes
    (protobuf.dev/programming-guides/encoding). Only the outermost ones are read, their contents are skipped.
    """
    size, fields = path.stat().st_size, set()
    with path.open("rb") as file:
        while file.tell() < size:
            tag, number = _read_varint(file), _read_varint(file)
            if tag is None or number is None or tag & 7 not in (_VARINT, _BYTES):
                return False
            if tag & 7 == _BYTES:
                file.seek(min(number, size + 1), os.SEEK_CUR)
            fields.add(tag >> 3)
        return file.tell() == size and _GRAPH in fields


def _read_varint(file: BinaryIO) -> int | None:
    """A number in groups of seven bits, the lowest first; None where the file ends within it."""
    number = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            return None
        number |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:
            return number
    return None


def _model_files(folder: Path) -> Iterator[ModelFile]:
    for path in sorted(path for path in (*folder.iterdir(), *folder.glob(f"{BACKBONE}/*")) if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if is_needed(name) or name == CARD:
            yield ModelFile(name, path.stat().st_size)


def _part_path(folder: Path, part: str) -> Path | None:
    try:
        return find_part(folder, part)
    except CheckpointError:
        return None


def _first_bytes(path: Path, count: int) -> bytes | None:
    """None where the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return None
