"""The language-model stage: prompts in, speech tokens out, one decode step after another for the whole batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from vivavoce.engine.request import SamplingParams
from vivavoce.engine.sampler import Sampler
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import Row, RowKind, TextInterleaver
from vivavoce.models.lm.kv_cache import KVCache
from vivavoce.models.lm.prompting import LMPrompt, control_row, pad_rows, prompt_rows, speech_rows, text_rows
from vivavoce.models.lm.qwen2 import SpeechLM

CACHE_GROWTH = 512
"""Positions by which a text-in stream's cache grows: its length is not known beforehand."""


class Decode:
    """One batch of sequences. Iterating yields, per step, the (sequence, token) pairs that it produced.

    Each sequence ends by itself, at its own stop id or maximum length; what has ended leaves the batch once half of
    the batch has.
    """

    def __init__(
        self,
        lm: SpeechLM,
        prompts: Sequence[LMPrompt],
        params: Sequence[SamplingParams],
        sampler: Sampler,
        official: bool = False,
        room: Sequence[int] | None = None,
    ) -> None:
        """`room`: speech tokens that the stages after this one can take of each sequence; None: any number."""
        self._lm, self._sampler = lm, sampler
        vocabulary = lm.config.vocabulary
        # The official code forbids one stop id before the minimum, and any of them could end the speech early.
        self._early_ids = [vocabulary.masked_before_minimum] if official else list(vocabulary.stop_ids)
        fewest = 0 if official else 1
        self._max_lengths = [int(one.max_ratio * len(prompt.text)) for prompt, one in zip(prompts, params, strict=True)]
        if room is not None:
            self._max_lengths = [min(pair) for pair in zip(self._max_lengths, room, strict=True)]
        self._min_lengths = [
            min(most, max(fewest, int(one.min_ratio * len(prompt.text))))
            for prompt, one, most in zip(prompts, params, self._max_lengths, strict=True)
        ]
        self._rows = [prompt_rows(lm, prompt) for prompt in prompts]
        longest = max(len(rows) + most for rows, most in zip(self._rows, self._max_lengths, strict=True))
        if longest > lm.config.max_positions:
            raise InvalidRequest(
                f"text: with its prompt it may need {longest} positions, the model has {lm.config.max_positions}; "
                "use a shorter text or reference"
            )
        self._capacity = longest + 1
        self.decoded: list[list[int]] = [[] for _ in prompts]
        """Tokens of each sequence so far, stop ids left out."""

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        lm = self._lm
        active = list(range(len(self._rows)))
        batch, lengths = pad_rows(self._rows)
        cache = KVCache.allocate(lm.config, len(active), self._capacity, batch.device, batch.dtype)
        reach = batch.shape[1]
        hidden = lm(batch, cache, reach=reach)
        hidden = hidden[torch.arange(len(active), device=batch.device), lengths - 1]
        slots = list(active)
        while active:
            scores = self._masked(lm.log_probabilities(hidden), slots)
            decoded = [self.decoded[sequence] for sequence in slots]
            chosen = self._sampler(scores, slots, decoded).tolist()
            produced = self._record(slots, chosen, active)
            if produced:
                yield produced
            if not active:
                return
            # A slot that has ended is fed its last id until it leaves: nobody reads what comes of it.
            feed = torch.tensor(chosen, device=batch.device)
            if 2 * len(active) <= len(slots):
                kept = torch.tensor([place for place, s in enumerate(slots) if s in active], device=batch.device)
                cache, lengths, feed = cache.select(kept), lengths[kept], feed[kept]
                slots = list(active)
            reach = min(reach + 1, self._capacity)
            hidden = lm(lm.speech_embedding(feed)[:, None], cache, lengths, reach)[:, 0]
            lengths = (lengths + 1).clamp(max=self._capacity - 1)

    def _record(self, slots: Sequence[int], chosen: Sequence[int], active: list[int]) -> list[tuple[int, int]]:
        """Append what was chosen to the sequences that are still active, and drop from those what has ended."""
        produced = []
        for sequence, token in zip(slots, chosen, strict=True):
            if sequence not in active:
                continue
            if token in self._lm.config.vocabulary.stop_ids:
                active.remove(sequence)
                continue
            self.decoded[sequence].append(token)
            produced.append((sequence, token))
            if len(self.decoded[sequence]) >= self._max_lengths[sequence]:
                active.remove(sequence)
        return produced

    def _masked(self, scores: Tensor, slots: Sequence[int]) -> Tensor:
        for row, sequence in enumerate(slots):
            if len(self.decoded[sequence]) < self._min_lengths[sequence]:
                scores[row, self._early_ids] = float("-inf")
        return scores


def decode_text_stream(
    lm: SpeechLM,
    interleaver: TextInterleaver,
    pieces: Iterable[Sequence[int]],
    sampler: Sampler,
    room: int | None = None,
) -> Iterator[int]:
    """Speech tokens of one sequence whose text arrives in pieces; reads a piece only when it needs one.

    Raises:
        InvalidRequest: the text goes on after `room` speech tokens, which the stages after this one cannot take, or
            past the model's positions.
    """
    vocabulary = lm.config.vocabulary
    device, dtype = lm.speech_head.weight.device, lm.speech_head.weight.dtype
    cache = KVCache.allocate(lm.config, 1, CACHE_GROWTH, device, dtype)
    length = spoken = 0
    arriving = iter(pieces)
    while not interleaver.done:
        if room is not None and spoken >= room:
            raise InvalidRequest(f"text: a stream holds {room} speech tokens at most; send the rest in a new stream")
        rows = interleaver.next_rows()
        if rows is None:
            piece = next(arriving, None)
            if piece is None:
                interleaver.close()
            else:
                interleaver.push(piece)
            continue
        if length + len(rows) > lm.config.max_positions:
            raise InvalidRequest(
                f"text: a stream holds {lm.config.max_positions} positions at most; send the rest in a new stream"
            )
        if length + len(rows) >= cache.capacity:
            cache = cache.extended(max(CACHE_GROWTH, len(rows) + 1))
        offsets = torch.tensor([length], device=device)
        hidden = lm(_embed(lm, rows)[None], cache, offsets, length + len(rows))
        length += len(rows)
        token = interleaver.forced()
        if token is None:
            scores = lm.log_probabilities(hidden[:, -1])
            control = scores[:, list(interleaver.allows())].clone()
            scores[:, list(vocabulary.stop_ids)] = float("-inf")
            scores[:, list(interleaver.allows())] = control
            token = int(sampler(scores, (0,), (interleaver.decoded,)))
        speech = interleaver.accept(token)
        if speech is not None:
            spoken += 1
            yield speech


def _embed(lm: SpeechLM, rows: Sequence[Row]) -> Tensor:
    """Input rows of mixed kinds  →  [n, hidden]."""
    tables = {RowKind.TEXT: text_rows, RowKind.SPEECH: speech_rows}
    parts = [
        control_row(lm, row.id) if row.kind is RowKind.CONTROL else tables[row.kind](lm, (row.id,)) for row in rows
    ]
    return torch.cat(parts)
