"""What `vivavoce bench offline` and `vivavoce bench streaming` say: built-in sentences, files, data sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    from vivavoce.service.voices.extract import AudioSource

DEFAULT_COUNT = 16
"""Of the built-in sentences: those that fill the largest batch."""
_SPLIT = "train"


@dataclass(frozen=True, eq=False)
class Line:
    """One text, and who says it; voice: a name or a recording, None: the model's first."""

    id: str
    text: str
    voice: AudioSource | None = None
    prompt_text: str = ""


@dataclass(frozen=True)
class TextChoice:
    """The options for texts as they were typed."""

    text_file: Path | None = None
    manifest: Path | None = None
    dataset: str | None = None
    split: str | None = None
    count: int | None = None
    voice: str | None = None
    prompt_text: str = ""

    @property
    def source(self) -> str:
        """Where the texts come from, for a report."""
        return str(self.dataset or self.manifest or self.text_file or "built in")

    def check(self) -> None:
        """Refuse options that exclude one another.

        Raises:
            InvalidRequest: names them.
        """
        given = {"--text-file": self.text_file, "--manifest": self.manifest, "--huggingface-dataset": self.dataset}
        named = [option for option, value in given.items() if value is not None]
        if len(named) > 1:
            raise InvalidRequest(f"texts: {' and '.join(named)} exclude one another; leave all but one out")
        if self.split is not None and self.dataset is None:
            raise InvalidRequest("split_name: belongs to a data set; name it with --huggingface-dataset")
        if self.voice is not None and (self.manifest or self.dataset):
            raise InvalidRequest(f"voice: each text of {self.source!r} has its own; leave --voice out")
        if self.prompt_text and self.voice is None:
            raise InvalidRequest("prompt_text: belongs to a recording; name it with --voice")

    def read(self) -> list[Line]:
        """The texts, those that name no voice with the one that was chosen.

        Raises:
            InvalidRequest: a file or a data set cannot be read.
            MissingDependency: the package `datasets` is not installed.
        """
        if self.dataset is not None:
            found: Sequence[Line] = read_dataset(self.dataset, self.split or _SPLIT, self.count)
        elif self.manifest is not None:
            found = _manifest(self.manifest)
        else:
            found = [Line(one.id, one.text, self.voice, self.prompt_text) for one in _sentences(self.text_file)]
        # Without a number, a list is spoken whole.
        built_in = self.source == "built in"
        return list(found[: self.count or (DEFAULT_COUNT if built_in else None)])


def _sentences(path: Path | None) -> Iterable[Any]:
    from vivavoce.bench.texts import SENTENCES
    from vivavoce.bench.workload import read_texts
    from vivavoce.evaluate.cases import cases_of

    return cases_of(SENTENCES if path is None else read_texts(path))


def _manifest(path: Path) -> list[Line]:
    from vivavoce.clients.triton.manifest import read_manifest
    from vivavoce.clients.triton.options import check_utterances

    utterances = read_manifest(path, field="list")
    check_utterances(utterances)
    # Without a recording the model's first voice speaks, of which such a text says nothing.
    return [
        Line(one.name, one.text, one.reference, one.reference_text if one.reference is not None else "")
        for one in utterances
    ]


def read_dataset(name: str, split: str, count: int | None) -> list[Line]:
    """Rows of a Hugging Face data set: `id`, `target_text` (or `text`), `prompt_text` and `prompt_audio`.

    Raises:
        MissingDependency: the package `datasets` is not installed.
        InvalidRequest: it cannot be loaded, or lacks a column.
    """
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise MissingDependency(
            "huggingface_dataset: the package datasets is not installed; pip install datasets, or give a --manifest"
        ) from None
    try:
        rows = datasets.load_dataset(name, split=split)
        # Bytes are enough, and need none of the decoders that the package would want.
        rows = rows.cast_column("prompt_audio", datasets.Audio(decode=False))
        rows = rows.select(range(min(len(rows), count or len(rows))))
        return [_row(place, row) for place, row in enumerate(rows, start=1)]
    except (OSError, ValueError, KeyError, RuntimeError) as error:  # of many packages under it
        reason = " ".join(str(error).split())
        raise InvalidRequest(
            f"huggingface_dataset: split {split!r} of {name!r} cannot be read ({type(error).__name__}: {reason}); it "
            "needs the columns id, prompt_text, prompt_audio and target_text"
        ) from None


def _row(place: int, row: dict[str, Any]) -> Line:
    recording = row["prompt_audio"]
    name = str(row.get("id", f"{place:04d}")).replace("/", "_")
    text = row["target_text"] if "target_text" in row else row["text"]
    return Line(name, text, recording["bytes"] or recording["path"], row["prompt_text"])
