"""Loads whole utterances of a corpus to a device, at 24 kHz or the encoders' 16 kHz; draws random numbers for rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.config import MelConfig
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.models.features import prompt_mel
from vivavoce_training.data.store import MELS_PER_TOKEN, SAMPLE_RATE, TOKEN_SAMPLES, Corpus


def uniform(like: Tensor, low: float, high: float) -> Tensor:
    """Draw a number in [low, high) for each row of `like`: [batch, 1, 1]."""
    return low + (high - low) * torch.rand(len(like), 1, 1, device=like.device)


def chance(like: Tensor, share: float) -> Tensor:
    """Draw True with the probability `share` for each row of `like`: [batch, 1, 1] bool."""
    return torch.rand(len(like), 1, 1, device=like.device) < share


def positions(starts: Tensor, tokens: int, per_token: int) -> Tensor:
    """Return indices [batch, tokens · per_token] of crops at tokens `starts` [batch]. per_token: values in a token."""
    return starts[:, None] * per_token + torch.arange(tokens * per_token, device=starts.device)


HEARD_RATE = 16_000
HEARD_SAMPLES = TOKEN_SAMPLES * HEARD_RATE // SAMPLE_RATE  # Samples of a token at 16 kHz.
BATCH_TOKENS = 45_000  # Most tokens in a batch when a whole corpus is encoded: half an hour of audio.
MEL_BATCH_TOKENS = 25 * 600


def evenly_by_speaker(corpus: Corpus, hours: float, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Choose utterances of about `hours`, or all if there are fewer, with equal shares of the speakers.

    allowed: [utterances], True for utterances that may be chosen; None: all  →  indices, ordered by speaker.
    """
    order: NDArray[np.int64] = np.argsort(corpus.speaker, kind="stable")
    if allowed is not None:
        order = order[allowed[order]]
    lengths, speaker = np.diff(corpus.start)[order], corpus.speaker[order]
    if lengths.sum() * TOKEN_SAMPLES <= hours * 3600 * SAMPLE_RATE:
        return order
    share = hours * 3600 * SAMPLE_RATE / TOKEN_SAMPLES / len(np.unique(speaker))
    before = np.cumsum(lengths) - lengths
    first_of_speaker = np.searchsorted(speaker, speaker)
    chosen: NDArray[np.int64] = order[before - before[first_of_speaker] < share]
    return chosen


def held_out(corpus: Corpus, every: int = 40) -> NDArray[np.bool_]:
    """Choose the utterances for validation: [utterances], True for a random 1 in `every`."""
    kept = np.zeros(len(corpus), np.bool_)
    kept[np.random.default_rng(0).permutation(len(corpus))[: len(corpus) // every]] = True
    return kept


@dataclass(frozen=True, eq=False)
class Split:
    """An encoder's utterances for training (`learned`, of `corpus`) and for validation (`judged`, of `judged_of`).

    unseen: a corpus of other speakers for validation; None: some utterances of `corpus` are kept out of training.
    """

    corpus: Corpus
    unseen: Corpus | None
    learned: NDArray[np.int64]
    judged_of: Corpus
    judged: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path, others: Path | None, hours: float) -> Split:
        """Split the corpus in `folder`, or train on it and validate on the corpus in `others`. hours: for training."""
        corpus = Corpus.open(folder)
        if others is not None:
            unseen = Corpus.open(others)
            return cls(corpus, unseen, evenly_by_speaker(corpus, hours), unseen, np.arange(len(unseen)))
        kept = held_out(corpus)
        return cls(corpus, None, evenly_by_speaker(corpus, hours, ~kept), corpus, np.flatnonzero(kept))

    @property
    def corpora(self) -> dict[str, Corpus]:
        """The corpora on which the trained encoder runs, by their names in the measures."""
        return {"corpus": self.corpus} | ({} if self.unseen is None else {"others": self.unseen})


def equal_length_batches(
    corpus: Corpus, utterances: NDArray[np.int64], batch_tokens: int = BATCH_TOKENS
) -> Iterator[NDArray[np.int64]]:
    """Yield batches of indices into `utterances`, of one length, with up to `batch_tokens` tokens or one utterance."""
    lengths = np.diff(corpus.start)[utterances]
    order: NDArray[np.int64] = np.argsort(lengths, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        if len(group):
            size = max(1, batch_tokens // max(1, int(lengths[group[0]])))
            yield from (group[first : first + size] for first in range(0, len(group), size))


def waves(corpus: Corpus, batch: NDArray[np.int64], device: torch.device) -> Tensor:
    """Load samples [batch, tokens · 960], float32 at 24 kHz, of utterances of one length."""
    starts, ends = corpus.start[batch], corpus.start[batch + 1]
    # Use slices, not one index array: indexing a mapped file sample by sample takes longer than all other work.
    rows = [corpus.wav[a * TOKEN_SAMPLES : b * TOKEN_SAMPLES] for a, b in zip(starts, ends, strict=True)]
    return torch.from_numpy(np.stack(rows)).to(device).float() / 32768


def heard(corpus: Corpus, batch: NDArray[np.int64], device: torch.device) -> Tensor:
    """Load samples [batch, tokens · 640], float32 at 16 kHz, of utterances of one length.

    They are resampled like prompts. Within `exact_float32`, the values are the same on all devices.
    """
    return resample_sinc(waves(corpus, batch, device), SAMPLE_RATE, HEARD_RATE)


def heard_alone(corpus: Corpus, utterance: int) -> Tensor:
    """Load samples [tokens · 640] of one utterance at 16 kHz, on the CPU."""
    return heard(corpus, np.array([utterance]), torch.device("cpu"))[0]


def by_token(
    corpus: Corpus, utterances: NDArray[np.int64], device: torch.device, made_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """Apply `made_of` to utterances, and join the results in the order of `utterances`: [tokens · m, ...].

    made_of: samples [batch, n] of complete utterances at 16 kHz  →  [batch, tokens · m, ...], computed in float32.
    """
    placed, whole = placed_tokens(corpus, utterances), torch.empty(0)
    with exact_float32():
        for rows in equal_length_batches(corpus, utterances):
            made = made_of(heard(corpus, utterances[rows], device))
            tokens = int(placed[rows[0] + 1] - placed[rows[0]])
            parts = made.unflatten(1, (tokens, -1))
            if not len(whole):
                whole = torch.empty(int(placed[-1]), *parts.shape[2:], dtype=made.dtype, device=device)
            whole[torch.from_numpy(placed[rows]).to(device)[:, None] + torch.arange(tokens, device=device)] = parts
    return whole.flatten(0, 1)


def mels_of(corpus: Corpus, config: MelConfig, device: torch.device) -> Tensor:
    """Compute every utterance's mel: [tokens · 2, bins] float16 on the device. Other utterances do not change it."""
    mels = torch.empty(corpus.num_tokens * MELS_PER_TOKEN, config.num_bins, dtype=torch.float16, device=device)
    for batch in equal_length_batches(corpus, np.arange(len(corpus)), MEL_BATCH_TOKENS):
        made = prompt_mel(waves(corpus, batch, device), config)
        first = torch.from_numpy(corpus.start[batch]).to(device)[:, None] * MELS_PER_TOKEN
        mels[first + torch.arange(made.shape[1], device=device)] = made.half()
    return mels


@dataclass(frozen=True, eq=False)
class Speakers:
    """The speakers' ranges in joined utterances, which are ordered by speaker; on one device.

    index: int64 [n], into the corpus's speakers; first, last: int64 [n], range [first, last) in tokens or samples.
    """

    index: Tensor
    first: Tensor
    last: Tensor

    def draw(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Draw starts of crops of `length`, each within one speaker, and the speakers' indices: int64 [batch] both.

        All speakers are equally likely. The host does not wait for the device.
        """
        device = self.index.device
        row = torch.randint(len(self.index), (batch,), device=device)
        room = self.last[row] - self.first[row] - length + 1
        # Draw in float64, because float32 cannot address each single sample of more than 17 minutes.
        offset = (torch.rand(batch, dtype=torch.float64, device=device) * room).long()
        return self.first[row] + offset, self.index[row]


def find_speakers(
    corpus: Corpus, utterances: NDArray[np.int64], longest: int, device: torch.device, per_token: int = 1
) -> Speakers:
    """Find the speakers with at least `longest` tokens in `utterances`, which are ordered by speaker.

    per_token: factor on the ranges, 1 for ranges in tokens; ValueError: every speaker has fewer tokens.
    """
    placed = placed_tokens(corpus, utterances)
    speaker = corpus.speaker[utterances]
    first = np.flatnonzero(np.diff(speaker, prepend=-1))
    last = np.append(first[1:], len(speaker))
    bounds = np.stack([speaker[first], placed[first] * per_token, placed[last] * per_token], axis=1).astype(np.int64)
    bounds = bounds[placed[last] - placed[first] >= longest]
    if not len(bounds):
        raise ValueError(f"corpus: no speaker has {longest} tokens; make a longer corpus")
    return Speakers(*torch.from_numpy(bounds).to(device).unbind(1))


def placed_tokens(corpus: Corpus, utterances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first token of each of `utterances` when they are joined in this order, then the end: [n + 1]."""
    return np.concatenate(([0], np.cumsum(np.diff(corpus.start)[utterances])))


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute without TF32: its 10-bit fraction adds noise 60 dB below the loudest value, and features span 80 dB."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def steps_in(folder: Path, part: str) -> int:
    """Return the steps that a training has taken. A later piece adds them to its seed, to draw other batches."""
    state = folder / f"{part}.state.pt"
    if not state.is_file():
        return 0
    return int(torch.load(state, map_location="cpu", weights_only=True, mmap=True)["step"])
