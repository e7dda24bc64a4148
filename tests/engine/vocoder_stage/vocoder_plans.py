"""Streams and whole utterances that tests have the vocoder stage speak."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.vocoder_stage import VocoderRow


def mel(frames, seed=0):
    return torch.randn(frames, 80, generator=torch.Generator().manual_seed(seed))


@dataclass
class Plan:
    """A stream and the sizes of its pieces, or a whole utterance of one."""

    sizes: list
    speed: float = 1.0
    joins: CrossfadeMode = CrossfadeMode.SEAMLESS
    seed: int = 0
    whole: bool = False

    def open(self, stage):
        return stage.open(self.seed, self.speed, self.joins)

    def piece(self, stream, number):
        part = mel(sum(self.sizes), self.seed).split(self.sizes)[number]
        return VocoderRow(stream, part, number == len(self.sizes) - 1, whole=self.whole)


def speak(stage, *plans):
    """All streams side by side: the samples of each one's pieces."""
    streams = [plan.open(stage) for plan in plans]
    waves = [[] for _ in plans]
    for number in range(max(len(plan.sizes) for plan in plans)):
        rows = [row for row, plan in enumerate(plans) if number < len(plan.sizes)]
        made = stage.run([plans[row].piece(streams[row], number) for row in rows])
        for row, samples in zip(rows, made, strict=True):
            waves[row].append(samples.clone())
    return waves


def spoken(stage, *given, **more):
    """All samples of one stream."""
    return torch.cat(speak(stage, Plan(*given, **more))[0])


def whole(stage, frames, **more):
    return spoken(stage, [frames], whole=True, **more)


def check(made, expected, atol):
    """Every piece of every stream is the same."""
    for ones, others in zip(made, expected, strict=True):
        assert [len(wave) for wave in ones] == [len(wave) for wave in others]
        for one, other in zip(ones, others, strict=True):
            torch.testing.assert_close(one, other, atol=atol, rtol=0)
