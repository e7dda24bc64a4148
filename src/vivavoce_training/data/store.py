"""The corpus on disk: flat arrays that hold all utterances one after another, aligned to speech tokens.

A speech token lasts 40 ms: 960 samples at 24 kHz, 2 mel frames, 4 frames of the speech tokenizer's features. Every
utterance is padded to whole tokens, so one number, the token's position, addresses all arrays.

    wav.npy         int16 [tokens · 960]   waveform, 24 kHz
    labels.npy      int16 [tokens]         tokens that spell phones, pitch and loudness, see `spelling`
    start.npy       int64 [utterances + 1] first token of each utterance, and the end
    speaker.npy     int32 [utterances]     index into speakers.json
    texts.json      one text per utterance
    speakers.json   a list of the fields of each `Speaker`
    tokens.npy      int16 [tokens]             speech tokens from a tokenizer, if there are no labels
    embeddings.npy  float16 [utterances, 192]  speaker embeddings from a speaker encoder

A corpus for the language model alone has no waveforms; a corpus of recordings has no labels.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vivavoce.files import replacing

SAMPLE_RATE = 24_000
TOKEN_SAMPLES = 960
MELS_PER_TOKEN = 2
FEATURES_PER_TOKEN = 4


@dataclass(frozen=True)
class Speaker:
    """A speaker; timbre, manner: recipes of a synthetic one, see `speakers`; traits: coordinates of its timbre."""

    name: str
    voice: str
    timbre: str = ""
    manner: str = ""
    traits: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Utterance:
    """wav: int16 [tokens · 960] at 24 kHz, or None; labels: int16 [tokens], or None."""

    num_tokens: int
    wav: NDArray[np.int16] | None = None
    labels: NDArray[np.int16] | None = None


def hours_of(num_tokens: int) -> float:
    return num_tokens * TOKEN_SAMPLES / SAMPLE_RATE / 3600


@dataclass(frozen=True, eq=False)
class Corpus:
    folder: Path
    start: NDArray[np.int64]
    speaker: NDArray[np.int32]
    texts: list[str]
    speakers: list[Speaker]

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Open `folder`; FileNotFoundError names what is missing."""
        described = json.loads((folder / "speakers.json").read_text(encoding="utf-8"))
        return cls(
            folder,
            np.load(folder / "start.npy"),
            np.load(folder / "speaker.npy"),
            json.loads((folder / "texts.json").read_text(encoding="utf-8")),
            [Speaker(**entry | {"traits": tuple(entry["traits"])}) for entry in described],
        )

    def __len__(self) -> int:
        return len(self.speaker)

    @property
    def num_tokens(self) -> int:
        return int(self.start[-1])

    @property
    def hours(self) -> float:
        return hours_of(self.num_tokens)

    @cached_property
    def wav(self) -> NDArray[np.int16]:
        """Waveforms [tokens · 960]; FileNotFoundError: the corpus is for the language model alone."""
        wav: NDArray[np.int16] = np.load(self.folder / "wav.npy", mmap_mode="r")
        return wav

    @cached_property
    def labels(self) -> NDArray[np.int16]:
        """Tokens [tokens] that spell phones, pitch and loudness; FileNotFoundError: it is a corpus of recordings."""
        labels: NDArray[np.int16] = np.load(self.folder / "labels.npy", mmap_mode="r")
        return labels

    @property
    def tokens(self) -> NDArray[np.int16]:
        """Speech tokens [tokens]: the labels, else a tokenizer's output; FileNotFoundError: the corpus has neither."""
        name = "labels.npy" if (self.folder / "labels.npy").is_file() else "tokens.npy"
        tokens: NDArray[np.int16] = np.load(self.folder / name, mmap_mode="r")
        return tokens

    @property
    def embeddings(self) -> NDArray[np.float16]:
        """Speaker embeddings [utterances, 192]; FileNotFoundError: they are not computed yet."""
        embeddings: NDArray[np.float16] = np.load(self.folder / "embeddings.npy", mmap_mode="r")
        return embeddings


def write_array(path: Path, array: NDArray[np.generic]) -> None:
    """Replace a file atomically: readers see the old array or the complete new one."""
    with replacing(path) as file:
        np.save(file, array)


class CorpusWriter:
    """Appends utterances to a folder, so that a corpus need not fit into memory; it can be opened after `finish`.

    arrays: `wav`, `labels` or both, the arrays that each utterance has.
    """

    def __init__(self, folder: Path, speakers: list[Speaker], arrays: Collection[str] = ("wav", "labels")) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._speakers = folder, speakers
        self._arrays = {name: _GrowingArray(folder / f"{name}.npy", np.int16) for name in arrays}
        self._start = [0]
        self._speaker: list[int] = []
        self._texts: list[str] = []

    @property
    def num_tokens(self) -> int:
        return self._start[-1]

    @property
    def num_utterances(self) -> int:
        return len(self._texts)

    def append(self, utterance: Utterance, speaker: int, text: str) -> None:
        """Add an utterance; `speaker` is an index into the speakers."""
        for name, array in self._arrays.items():
            array.append(getattr(utterance, name))
        self._start.append(self.num_tokens + utterance.num_tokens)
        self._speaker.append(speaker)
        self._texts.append(text)

    def finish(self) -> Corpus:
        for array in self._arrays.values():
            array.finish()
        write_array(self._folder / "start.npy", np.array(self._start, np.int64))
        write_array(self._folder / "speaker.npy", np.array(self._speaker, np.int32))
        (self._folder / "texts.json").write_text(json.dumps(self._texts, ensure_ascii=False), encoding="utf-8")
        described = json.dumps([asdict(one) for one in self._speakers], indent=1)
        (self._folder / "speakers.json").write_text(described, encoding="utf-8")
        return Corpus.open(self._folder)

    def close(self) -> None:
        for array in self._arrays.values():
            array.close()


class _GrowingArray:
    """Writes a one-dimensional .npy file under a temporary name; `finish` fills in its length and renames it."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        self._temporary = path.with_name(f".{path.name}.part")
        self._file = self._temporary.open("wb")
        self._length = 0
        self._header_bytes = self._write_header()

    def append(self, values: NDArray[np.generic]) -> None:
        self._file.write(values.astype(self._dtype, casting="no", copy=False).data)
        self._length += len(values)

    def finish(self) -> None:
        self._file.seek(0)
        if self._write_header() != self._header_bytes:
            raise ValueError(f"{self._path}: the header for {self._length} values is longer than the space left for it")
        self._file.close()
        self._temporary.replace(self._path)

    def close(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write_header(self) -> int:
        """Write the header for the current length; numpy pads it, so the final length fits in the same bytes."""
        described = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, described | {"shape": (self._length,)})
        return self._file.tell()
