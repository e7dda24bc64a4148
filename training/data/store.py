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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
    """One speaker: a synthetic voice and what was changed of it.

    tract: factor on the formants (> 1: a shorter vocal tract); pitch: factor on the pitch; tempo: factor on the
    durations (> 1: slower).
    """

    name: str
    voice: str
    tract: float = 1.0
    pitch: float = 1.0
    tempo: float = 1.0


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus folder, its arrays mapped and not read."""

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
        """Speech tokens of all utterances."""
        return int(self.start[-1])

    @property
    def hours(self) -> float:
        """Hours of audio."""
        return self.num_tokens * TOKEN_SAMPLES / SAMPLE_RATE / 3600

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


def write_corpus(
    folder: Path,
    wav: NDArray[np.int16],
    phones: NDArray[np.uint8],
    lengths: Sequence[int] | NDArray[np.int64],
    speaker: Sequence[int] | NDArray[np.int32],
    texts: Sequence[str],
    speakers: Sequence[Speaker],
) -> Corpus:
    """Write the arrays and open them; `lengths`: tokens of each utterance.

    Raises:
        ValueError: the arrays do not fit one another.
    """
    tokens = int(np.sum(lengths))
    if len(wav) != tokens * TOKEN_SAMPLES or len(phones) != tokens * MELS_PER_TOKEN:
        raise ValueError(f"{len(wav)} samples and {len(phones)} phones do not make {tokens} tokens")
    if not len(lengths) == len(speaker) == len(texts):
        raise ValueError(f"{len(lengths)} lengths, {len(speaker)} speakers and {len(texts)} texts differ in number")
    folder.mkdir(parents=True, exist_ok=True)
    write_array(folder / "wav.npy", wav)
    write_array(folder / "phones.npy", phones)
    return write_index(folder, lengths, speaker, texts, speakers)


def write_index(
    folder: Path,
    lengths: Sequence[int] | NDArray[np.int64],
    speaker: Sequence[int] | NDArray[np.int32],
    texts: Sequence[str],
    speakers: Sequence[Speaker],
) -> Corpus:
    """Write what says which utterance lies where, beside waveform and phones, and open the corpus."""
    start = np.concatenate(([0], np.cumsum(np.asarray(lengths, np.int64))))
    write_array(folder / "start.npy", start)
    write_array(folder / "speaker.npy", np.asarray(speaker, np.int32))
    (folder / "texts.json").write_text(json.dumps(list(texts), ensure_ascii=False), encoding="utf-8")
    described = [asdict(one) for one in speakers]
    (folder / "speakers.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    return Corpus.open(folder)


def write_array(path: Path, array: NDArray[np.generic]) -> None:
    """Save an array so that readers see the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(path)
