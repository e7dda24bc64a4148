"""Finds the attention heads of a language model that follow the spoken text, and the lag of the voice behind them.

Some sentences are spoken first. A head is good if its attention moves through the text from left to right in small
steps. To find the lag, one word after another is replaced by a different word: the speech tokens that then become
unlikely are the tokens of the replaced word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.text_cursor import TextCursor
from vivavoce.models.lm.interleave import Row, RowKind
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.lm.text_attention import TextHeads, text_attention

MOST_HEADS, CANDIDATES = 3, 16
LEAST_SCORE, LEAST_OF_BEST = 0.5, 0.85
"""Smallest score of a chosen head, and its smallest share of the best head's score."""
_BEFORE, _BEHIND, _LOST = 5, 4, 6.0
LAGS = (-2.0, 8.0)
"""Limits of the lag, in speech tokens; a lag outside of them is rejected as an error of the search."""


@dataclass(frozen=True)
class SpokenSample:
    """A sentence that the model has spoken; prompt: the prompt's rows; text: the range of the text's rows in `prompt`;
    words: index of each word's first text token; tokens: the speech tokens."""

    prompt: tuple[Row, ...]
    text: slice
    words: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.prompt, *(Row(RowKind.SPEECH, one) for one in self.tokens))

    @property
    def queries(self) -> slice:
        """The range of the rows at which the model predicted the speech tokens."""
        return slice(len(self.prompt) - 1, len(self.prompt) - 1 + len(self.tokens))


def has_heads(lm: object) -> TypeGuard[SpeechLM]:
    """Return whether the attention of this language model can be read."""
    return isinstance(lm, SpeechLM)


def find_heads(lm: SpeechLM, samples: Sequence[SpokenSample]) -> TextHeads | None:
    """Return the best heads with their lag and pace; None if no head follows the text well enough."""
    samples = [one for one in samples if len(one.tokens) > 2 * _BEFORE and len(one.words) > 2]
    if len(samples) < 3:
        return None
    attention = [
        text_attention(lm, embedded(lm, one.rows), one.text, one.queries).cpu().numpy().astype(np.float32)
        for one in samples
    ]
    quick = np.mean([_quick_scores(one) for one in attention], axis=0)
    places = np.dstack(np.unravel_index(np.argsort(-quick, axis=None)[:CANDIDATES], quick.shape))[0].tolist()
    scores = {(layer, head): float(np.mean([_score(one[layer, head]) for one in attention])) for layer, head in places}
    best = sorted(scores, key=lambda one: -scores[one])[:MOST_HEADS]
    least = max(LEAST_SCORE, LEAST_OF_BEST * scores[best[0]])
    heads = tuple(one for one in best if scores[one] >= least)
    if not heads:
        return None
    lag = _lag(lm, samples, [np.mean([one[place] for place in heads], axis=0) for one in attention])
    pace = sum(len(one.tokens) for one in samples) / sum(one.text.stop - one.text.start for one in samples)
    return None if lag is None else TextHeads(heads, lag, pace)


def embedded(lm: SpeechLM, rows: Sequence[Row]) -> Tensor:
    """Return the embeddings of the rows, [1, rows, hidden]."""
    tables = {
        RowKind.CONTROL: lm.control_rows,
        RowKind.TEXT: lm.text_embedding,
        RowKind.SPEECH: lm.speech_embedding,
    }
    return torch.stack([tables[row.kind].weight[row.id] for row in rows])[None]


def _quick_scores(attention: NDArray[np.float32]) -> NDArray[np.float64]:
    """Score heads roughly by how evenly they move through the text; [layers, heads, tokens, text] → [layers, heads]."""
    tokens, text = attention.shape[2:]
    mean = attention @ np.arange(text)
    time = np.arange(tokens) - (tokens - 1) / 2
    moved = mean - mean.mean(axis=2, keepdims=True)
    norms = np.sqrt((moved**2).sum(axis=2) * (time**2).sum()) + 1e-9
    sure: NDArray[np.float64] = np.sort(attention, axis=3)[..., -3:].sum(axis=(2, 3)) / tokens
    return np.asarray(np.maximum(moved @ time / norms, 0.0) * sure)


def _score(attention: NDArray[np.float32]) -> float:
    """Return the mean attention [tokens, text] near the best path, times the path's share of the text; 0 … 1."""
    path = _path(attention)
    near = [row[max(0, at - 1) : at + 2].sum() for row, at in zip(attention, path, strict=True)]
    return float(np.mean(near)) * float(path[-1] - path[0] + 1) / attention.shape[1]


def _path(attention: NDArray[np.float32]) -> NDArray[np.int64]:
    cursor = TextCursor()
    cursor.add(len(attention), attention)
    return cursor.positions()


def _lag(lm: SpeechLM, samples: Sequence[SpokenSample], attention: Sequence[NDArray[np.float32]]) -> float | None:
    ahead = []
    for number, (sample, weights) in enumerate(zip(samples, attention, strict=True)):
        path = _path(weights)
        lost = _lost(lm, sample, samples[number - 1])
        for first, loss in zip(sample.words[1::2], lost, strict=True):
            begin = int(np.searchsorted(path, first))
            places = range(max(1, begin - 3), min(len(loss) - 2, begin + 10))
            if places and loss.max() > 1.0:
                rises = [loss[at : at + _BEHIND].mean() - loss[max(0, at - _BEFORE) : at].mean() for at in places]
                ahead.append(places[int(np.argmax(rises))] - begin)
    # If the loss rises at a speech token, the word begins within this token, on average in its middle.
    lag = float(np.median(ahead)) + 0.5 if len(ahead) >= 8 else None
    return lag if lag is not None and LAGS[0] <= lag <= LAGS[1] else None


def _lost(lm: SpeechLM, sample: SpokenSample, other: SpokenSample) -> NDArray[np.float32]:
    """Return the loss in tokens' log-probability if a word is replaced, for every second word: [words // 2, tokens]."""
    text, given = sample.prompt[sample.text], other.prompt[other.text]
    ends = (*sample.words[1:], len(text))
    changed = []
    for first, end in list(zip(sample.words, ends, strict=True))[1::2]:
        foreign = [given[(first + at) % len(given)] for at in range(end - first)]
        changed.append((*text[:first], *foreign, *text[end:]))
    rows = sample.rows
    all_rows = [rows, *((*rows[: sample.text.start], *one, *rows[sample.text.stop :]) for one in changed)]
    hidden = lm(torch.cat([embedded(lm, one) for one in all_rows]))[:, sample.queries]
    wanted = torch.tensor(sample.tokens, device=hidden.device).expand(len(all_rows), -1)
    likely = lm.log_probabilities(hidden).gather(2, wanted[..., None])[..., 0]
    found: NDArray[np.float32] = (likely[:1] - likely[1:]).clamp(-_LOST, _LOST).cpu().numpy()
    return found
