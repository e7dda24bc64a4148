"""The corpus on disk: every utterance on the grid of speech tokens, one after another, in flat arrays.

A speech token lasts 40 ms: 960 samples at 24 kHz, 2 mel frames, 4 frames of the speech tokenizer's features. Every
utterance is padded to whole tokens, so one number, the token's position, addresses all arrays.

    wav.npy         int16 [tokens · 960]   waveform, 24 kHz
    phones.npy      uint8 [tokens · 2]     phone of each mel frame, an index into PHONES
    start.npy       int64 [utterances + 1] first token of each utterance, and the end
    speaker.npy     int32 [utterances]     index into speakers.json
    texts.json      one text per utterance
    speakers.json   one Speaker per line
    tokens.npy      int16 [tokens]             speech tokens; written by the tokenizer's training
    embeddings.npy  float16 [utterances, 192]  speaker embeddings; written by the speaker encoder's training
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vivavoce.files import replacing

SAMPLE_RATE = 24_000
TOKEN_SAMPLES = 960
MELS_PER_TOKEN = 2
FEATURES_PER_TOKEN = 4

PHONES = (
    *("pau", "aa", "ae", "ah", "ao", "aw", "ax", "ay", "b", "ch", "d", "dh", "eh", "er"),
    *("ey", "f", "g", "hh", "ih", "iy", "jh", "k", "l", "m", "n", "ng", "ow", "oy"),
    *("p", "r", "s", "sh", "t", "th", "uh", "uw", "v", "w", "y", "z", "zh"),
)
"""flite's phones of American English; the first is silence."""


@dataclass(frozen=True)
class Speaker:
    """A synthetic voice, and what was changed of it.

    tract: factor on the formants (> 1: a shorter vocal tract); pitch: factor on the pitch; tempo: factor on the
    durations (> 1: slower).
    """

    name: str
    voice: str
    tract: float = 1.0
    pitch: float = 1.0
    tempo: float = 1.0


@dataclass(frozen=True, eq=False)
class Utterance:
    """wav: int16 [tokens · 960] at 24 kHz; phones: uint8 [tokens · 2], the phone at the centre of each mel frame."""

    wav: NDArray[np.int16]
    phones: NDArray[np.uint8]

    @property
    def num_tokens(self) -> int:
        """Length in speech tokens of 40 ms."""
        return len(self.wav) // TOKEN_SAMPLES


def hours_of(num_tokens: int) -> float:
    return num_tokens * TOKEN_SAMPLES / SAMPLE_RATE / 3600


@dataclass(frozen=True, eq=False)
class Corpus:
    folder: Path
    wav: NDArray[np.int16]
    phones: NDArray[np.uint8]
    start: NDArray[np.int64]
    speaker: NDArray[np.int32]
    texts: list[str]
    speakers: list[Speaker]

    @classmethod
    def open(cls, folder: Path) -> Corpus:
        """Map the arrays of `folder`; FileNotFoundError names what is missing."""
        return cls(
            folder,
            np.load(folder / "wav.npy", mmap_mode="r"),
            np.load(folder / "phones.npy", mmap_mode="r"),
            np.load(folder / "start.npy"),
            np.load(folder / "speaker.npy"),
            json.loads((folder / "texts.json").read_text(encoding="utf-8")),
            [Speaker(**entry) for entry in json.loads((folder / "speakers.json").read_text(encoding="utf-8"))],
        )

    def __len__(self) -> int:
        return len(self.speaker)

    @property
    def num_tokens(self) -> int:
        return int(self.start[-1])

    @property
    def hours(self) -> float:
        return hours_of(self.num_tokens)

    @property
    def tokens(self) -> NDArray[np.int16]:
        """Speech tokens [tokens]; FileNotFoundError until the tokenizer's training has written them."""
        tokens: NDArray[np.int16] = np.load(self.folder / "tokens.npy", mmap_mode="r")
        return tokens

    @property
    def embeddings(self) -> NDArray[np.float16]:
        """Speaker embeddings [utterances, 192]; FileNotFoundError until the speaker encoder's training has run."""
        embeddings: NDArray[np.float16] = np.load(self.folder / "embeddings.npy", mmap_mode="r")
        return embeddings


def write_array(path: Path, array: NDArray[np.generic]) -> None:
    """Save an array so that readers see the old file or the whole new one."""
    with replacing(path) as file:
        np.save(file, array)


class CorpusWriter:
    """Appends utterances to a folder, so that a corpus need not fit into memory; it can be opened after `finish`."""

    def __init__(self, folder: Path, speakers: list[Speaker]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._speakers = folder, speakers
        self._wav = _GrowingArray(folder / "wav.npy", np.int16)
        self._phones = _GrowingArray(folder / "phones.npy", np.uint8)
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
        self._wav.append(utterance.wav)
        self._phones.append(utterance.phones)
        self._start.append(self.num_tokens + utterance.num_tokens)
        self._speaker.append(speaker)
        self._texts.append(text)

    def finish(self) -> Corpus:
        self._wav.finish()
        self._phones.finish()
        write_array(self._folder / "start.npy", np.array(self._start, np.int64))
        write_array(self._folder / "speaker.npy", np.array(self._speaker, np.int32))
        (self._folder / "texts.json").write_text(json.dumps(self._texts, ensure_ascii=False), encoding="utf-8")
        described = json.dumps([asdict(one) for one in self._speakers], indent=1)
        (self._folder / "speakers.json").write_text(described, encoding="utf-8")
        return Corpus.open(self._folder)

    def close(self) -> None:
        self._wav.close()
        self._phones.close()


class _GrowingArray:
    """A one-dimensional .npy file whose length is filled in at the end, under another name until then."""

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
            raise ValueError(f"{self._path}: the header of {self._length} values is longer than that of none")
        self._file.close()
        self._temporary.replace(self._path)

    def close(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write_header(self) -> int:
        """The header for the length so far; numpy leaves room in it for longer ones."""
        described = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, described | {"shape": (self._length,)})
        return self._file.tell()
