"""How a typed program uses the package: checked by mypy in its strict mode, never run."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import vivavoce


def whole(tts: vivavoce.Vivavoce, recording: Path) -> NDArray[np.float32]:
    cancel = threading.Event()
    voice: vivavoce.Voice = tts.voice(recording, transcript="What I say there.")
    speech: vivavoce.Speech = tts.speak("Hello.", voice, speed=1.1, seed=3, mode=vivavoce.Mode.ZERO_SHOT, cancel=cancel)
    timings: vivavoce.Timings = speech.timings
    both = speech + tts.convert((speech.samples, speech.sample_rate), recording, transcript="What I say there.")
    for one in tts.speak_many(["One.", "Two."], (torch.zeros(24_000), 24_000), instructions="speak slowly"):
        both += one
    marks: tuple[vivavoce.Mark, ...] = both.marks
    both.save("hello.mp3")
    print(timings.total_s, vivavoce.to_srt(marks), vivavoce.to_vtt(marks), len(both.to_bytes("mp3")))
    return both.samples


def streamed(tts: vivavoce.Vivavoce) -> NDArray[np.float32]:
    policy = vivavoce.ChunkPolicy.low_latency()
    chunks: vivavoce.ChunkStream = tts.stream(["Hello ", "there."], "calm", prompt_text="", policy=policy)
    return np.concatenate([assert_type(chunk.samples, NDArray[np.float32]) for chunk in chunks])


async def in_an_event_loop(tts: vivavoce.Vivavoce, pieces: AsyncIterator[str]) -> float:
    seconds = 0.0
    async for chunk in tts.astream(pieces, sampling=vivavoce.SamplingParams(top_k=5)):
        seconds += float(np.abs(chunk.samples).max())
    return seconds + (await tts.aspeak("Hello.", language="en")).rtf


def loaded(problem: Exception) -> vivavoce.Vivavoce:
    assert isinstance(problem, vivavoce.VivavoceError)
    return vivavoce.load(device="cpu", settings=vivavoce.EngineSettings(slots=4))
