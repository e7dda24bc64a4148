"""Builds the corpus: gives lines to speakers, lets the teacher speak them in batches, and writes each batch."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce_training.data.kokoro.phonemes import Line
from vivavoce_training.data.kokoro.teacher import Said, Teacher
from vivavoce_training.data.speakers import weight
from vivavoce_training.data.store import TOKEN_SAMPLES, Corpus, CorpusWriter, Speaker, Utterance, hours_of

PEAK = (0.5, 0.9)  # Range from which an utterance's peak amplitude is drawn; full scale is 1.
SYMBOLS_AT_ONCE = 16_000  # Most phoneme symbols in a batch, with padding.
MOST_AT_ONCE = 256  # Most lines in a batch.
_AHEAD = 2  # Most batches that wait to be written.


class Progress(NamedTuple):
    hours: float
    utterances: int


class _Batch(NamedTuple):
    lines: list[Line]
    speakers: list[int]


def build(
    folder: Path,
    hours: float,
    teacher: Teacher,
    speakers: Sequence[Speaker],
    lines: Mapping[str, Sequence[Line]],
    seed: int,
    *,
    aloud: bool = True,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Corpus:
    """Write a corpus of `hours` hours into `folder`, or a shorter corpus if there are too few lines.

    lines: accent → lines; one speaker of the accent speaks each line once. aloud: write waveforms, not only labels.
    """
    r, draws = random.Random(seed), np.random.default_rng(seed)
    torch.manual_seed(seed)
    usual = teacher.usual_pitch(speakers)
    known = [replace(one, traits=traits) for one, traits in zip(speakers, teacher.traits(speakers), strict=True)]
    arrays = ("wav", "labels") if aloud else ("labels",)
    waiting: deque[Future[None]] = deque()
    with closing(CorpusWriter(folder, known, arrays)) as writer, ThreadPoolExecutor(1) as aside:
        for batch in _batches(lines, speakers, r):
            own = [speakers[index] for index in batch.speakers]
            said = teacher.say(batch.lines, own, usual[batch.speakers], draws, aloud=aloud)
            pcm = None if said.wave is None else _pcm(said, draws)
            waiting.append(aside.submit(_write, writer, batch, said, pcm))
            if len(waiting) > _AHEAD:
                waiting.popleft().result()
            report(Progress(hours_of(writer.num_tokens), writer.num_utterances))
            if hours_of(writer.num_tokens) >= hours:
                break
        for one in waiting:
            one.result()
        return writer.finish()


def default_jobs() -> int:
    """Return the number of worker processes: one per core, at most 16, as each may take half a gigabyte of memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16)


def _batches(lines: Mapping[str, Sequence[Line]], speakers: Sequence[Speaker], r: random.Random) -> Iterator[_Batch]:
    """Yield batches in random order. The lines of a batch have similar lengths, and each has a speaker."""
    pairs: list[tuple[Line, int]] = []
    for accent, own in lines.items():
        able = [index for index, one in enumerate(speakers) if one.manner[0] == accent]
        if able:
            drawn = r.choices(able, [weight(speakers[index]) for index in able], k=len(own))
            pairs += zip(own, drawn, strict=True)
    r.shuffle(pairs)
    pairs.sort(key=lambda pair: len(pair[0].ids))
    batches, begin = [], 0
    while begin < len(pairs):
        longest = len(pairs[min(begin + MOST_AT_ONCE, len(pairs)) - 1][0].ids)
        count = max(1, min(MOST_AT_ONCE, SYMBOLS_AT_ONCE // longest))
        part = pairs[begin : begin + count]
        batches.append(_Batch([line for line, _ in part], [index for _, index in part]))
        begin += count
    r.shuffle(batches)
    yield from batches


def _pcm(said: Said, draws: np.random.Generator) -> NDArray[np.int16]:
    """Convert to samples [batch, samples]; the peak of each utterance is drawn from `PEAK`."""
    assert said.wave is not None
    wave = said.wave.float()
    peaks = torch.from_numpy(draws.uniform(*PEAK, len(wave)).astype(np.float32)).to(wave.device)[:, None]
    scaled = wave * (peaks / wave.abs().amax(1, keepdim=True).clamp(min=1e-4))
    pcm: NDArray[np.int16] = (scaled * 32767).round().short().cpu().numpy()
    return pcm


def _write(writer: CorpusWriter, batch: _Batch, said: Said, pcm: NDArray[np.int16] | None) -> None:
    for row, (line, speaker, spoken) in enumerate(zip(batch.lines, batch.speakers, said.spoken, strict=True)):
        if spoken is None:
            continue
        count, wav = len(spoken.tokens), None
        if pcm is not None:
            wav = pcm[row, spoken.first : spoken.last]
            wav = np.pad(wav, (0, count * TOKEN_SAMPLES - len(wav)))
        writer.append(Utterance(count, wav, spoken.tokens), speaker, line.text)
