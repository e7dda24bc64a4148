"""Examines a model folder: lists its contents and all problems, without loading a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from torch import Tensor

from vivavoce.checkpoint.config import Generation, ModelConfig
from vivavoce.checkpoint.folder import (
    BACKBONE,
    CARD,
    SPEAKER_ENCODER,
    SPEAKERS,
    YAML_OF,
    ModelCard,
    detect_generation,
    fingerprint,
    is_pointer,
    read_card,
    speech_tokenizer_of,
)
from vivavoce.checkpoint.known_models import is_needed, models_home, read_record, size_of
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import find_part, load_into, read_tensors
from vivavoce.errors import VivavoceError
from vivavoce.frontend.model_choice import MINI
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce.models.generations import NETWORKS

_WHOLE_TOKENIZER = f"{BACKBONE}/tokenizer.json"
_TOKENIZER_PARTS = tuple(f"{BACKBONE}/{name}" for name in ("vocab.json", "merges.txt", "tokenizer_config.json"))
_NETWORKS = {generation: {one.part: one for one in parts.values()} for generation, parts in NETWORKS.items()}
_PARTS = tuple(dict.fromkeys(part for parts in _NETWORKS.values() for part in parts))

Found = TypeVar("Found")


@dataclass(frozen=True)
class ModelFile:
    path: str
    num_bytes: int


@dataclass(frozen=True)
class PartReport:
    name: str
    file: str
    num_parameters: int
    dtypes: tuple[str, ...]


@dataclass
class ModelReport:
    """The result of `inspect_model`. If something cannot be read, its field is None or empty, and `problems` tells why.

    generation: v1, v2 or v3, by the yaml file; source: hub, repository and revision of a download; tokenizer_size:
    number of text tokens, including special tokens; problems: all reasons why the model cannot work."""

    folder: Path
    card: ModelCard
    generation: str | None = None
    source: str | None = None
    config: ModelConfig | None = None
    parts: list[PartReport] = field(default_factory=list)
    files: list[ModelFile] = field(default_factory=list)
    tokenizer_size: int | None = None
    voices: tuple[str, ...] = ()
    fingerprint: str | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def problem_line(self) -> str:
        problems = self.problems
        if len(problems) > 1:
            problems = [f"({number}) {problem}" for number, problem in enumerate(problems, start=1)]
        return f"model {self.card.name}: {' '.join(problems)}"

    def add(self, problem: str) -> None:
        plain = problem.removeprefix("model: ")
        if plain not in self.problems:
            self.problems.append(plain)

    def attempt(self, read: Callable[..., Found], *arguments: Any) -> Found | None:
        try:
            return read(*arguments)
        except VivavoceError as error:
            self.add(str(error))
            return None


def inspect_model(folder: Path) -> ModelReport:
    """Check the files that inference reads, as far as possible without loading a network. Raises no error for a problem
    of the model, but adds it to the report."""
    report = ModelReport(folder, ModelCard(folder.absolute().name))
    usable = _readable_files(report)
    generation = report.attempt(detect_generation, folder)
    report.generation = generation and generation.value
    onnx_files = (*((speech_tokenizer_of(generation),) if generation else ()), SPEAKER_ENCODER)
    paths: dict[str, Path] = {}
    for part in _PARTS:
        with suppress(VivavoceError):
            paths[part] = find_part(folder, part)
    backbone: tuple[str, ...] = ()
    if generation is not Generation.V1:  # CosyVoice 1's text tokenizer is in the package
        tokenizer = (_WHOLE_TOKENIZER,) if (folder / _WHOLE_TOKENIZER).is_file() else _TOKENIZER_PARTS
        backbone = (f"{BACKBONE}/config.json", *tokenizer)
    if generation or report.files:
        required = (*onnx_files, *backbone)
        missing = [f"{part}.pt" for part in _PARTS if part not in paths]
        missing += [path for path in required if not (folder / path).is_file()]
        if missing:
            report.add(f"missing {', '.join(missing)}; download the whole folder")
    for name in onnx_files:
        if name in usable and not is_whole_onnx(folder / name):
            report.add(f"{name} is cut off, or no ONNX model; download it again")
    weights: dict[str, Mapping[str, Tensor]] = {}
    for part, path in paths.items():
        if path.name in usable and (state := report.attempt(read_tensors, path)) is not None:
            weights[part] = state
    if generation and usable.issuperset(backbone[:1]):
        report.config = report.attempt(read_config, folder, weights.get("flow", {}))
    for part, tensors in weights.items():
        report.parts.append(_part_report(part, paths[part], tensors))
        if report.config is not None:
            report.attempt(_check_fit, part, paths[part], tensors, report.config)
    if usable.issuperset(backbone[1:]):
        report.tokenizer_size = report.attempt(lambda: len(TextTokenizer.from_folder(folder / BACKBONE)))
    if SPEAKERS in usable:
        report.voices = tuple(report.attempt(built_in_voices, folder) or ())
    if report.generation and usable.issuperset(onnx_files):
        report.fingerprint = report.attempt(fingerprint, folder)
    report.card = report.attempt(read_card, folder) or report.card
    report.source = _source(report)
    return report


def _readable_files(report: ModelReport) -> set[str]:
    folder, pointers, locked = report.folder, [], []
    for path in sorted(path for path in (*folder.iterdir(), *folder.glob(f"{BACKBONE}/*")) if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if not is_needed(name) and name != CARD:
            continue
        report.files.append(ModelFile(name, path.stat().st_size))
        try:
            if is_pointer(path):
                pointers.append(name)
        except OSError:
            locked.append(name)
    if pointers:
        report.add(f"git-lfs pointers stand in for {', '.join(pointers)}; type `git lfs pull`")
    if locked:
        report.add(f"{', '.join(locked)} cannot be read; check the permissions")
    return {file.path for file in report.files} - {*pointers, *locked}


def _check_fit(part: str, path: Path, tensors: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Compare names and shapes of the weights with the configured network, without memory for weights or network."""
    network_part = _NETWORKS[config.generation][part]
    network = network_part.outline(config)
    shapes = {key: tensor.to("meta") for key, tensor in tensors.items()}
    load_into(network, network_part.state(shapes), network_part.names, path.name, torch.float32)


def _part_report(part: str, path: Path, tensors: Mapping[str, Tensor]) -> PartReport:
    unused = frozenset[str]().union(*(parts[part].names.unused for parts in _NETWORKS.values()))
    used = [tensor for key, tensor in tensors.items() if key not in unused]
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in used})
    return PartReport(part, path.name, sum(tensor.numel() for tensor in used), tuple(dtypes))


def _source(report: ModelReport) -> str | None:
    record = read_record(report.folder)
    if record is None:
        return None
    changed = [path for path, file in record.files.items() if size_of(report.folder / path) != file.size]
    if changed:
        report.add(f"{', '.join(changed)}: not as downloaded; type `vivavoce download {record.model}`")
    return f"{record.source} {record.repository} at {record.revision}"


class ModelNames:
    """Maps a voice's fingerprint to the name of a model in `folders`. Fingerprints are computed only when needed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._untried = list(folders)
        self._names: dict[str, str] = {}

    def of(self, identity: str) -> str | None:
        while identity not in self._names and self._untried:
            folder = self._untried.pop(0)
            with suppress(VivavoceError):  # an incomplete folder has no fingerprint
                self._names[fingerprint(folder)] = read_card(folder).name
        return self._names.get(identity)


def local_models() -> list[Path]:
    return [MINI, *sorted({path.parent for yaml in YAML_OF.values() for path in models_home().glob(f"*/{yaml}")})]


def is_whole_onnx(path: Path) -> bool:
    """Return whether an ONNX file is complete. Only its outermost fields are checked: each is a tag and a number, or a
    tag, a length and bytes (protobuf.dev/programming-guides/encoding)."""
    size, fields = path.stat().st_size, set()
    with path.open("rb") as file:
        while file.tell() < size:
            tag, number = _read_varint(file), _read_varint(file)
            if tag is None or number is None or tag & 7 not in (0, 2):  # ONNX has numbers and bytes only
                return False
            if tag & 7 == 2:
                file.seek(min(number, size + 1), os.SEEK_CUR)
            fields.add(tag >> 3)
        return file.tell() == size and 7 in fields  # field 7 of ModelProto is the network (onnx.proto3)


def _read_varint(file: BinaryIO) -> int | None:
    number = 0
    for index in range(10):
        byte = file.read(1)
        if not byte:
            return None
        number |= (byte[0] & 0x7F) << (7 * index)
        if byte[0] < 0x80:
            return number
    return None
