"""An engine whose audio carries the mark of synthetic speech."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vivavoce.api import load
from vivavoce.engine.request import SamplingParams
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.watermark import WatermarkStream

SHORT = SamplingParams(max_ratio=2.0, min_ratio=0.0, top_k=5)
TEXT = "One two three. Four five six."


def test_streams_and_whole_speech_are_marked_to_the_last_sample(babble: Path, tmp_path: Path) -> None:
    made = {}
    for watermark in (False, True):
        with load(babble, device="cpu", voices=tmp_path, settings=EngineSettings(watermark=watermark)) as tts:
            whole = tts.speak(TEXT, sampling=SHORT, seed=3).samples
            chunks = tts.stream(TEXT, sampling=SHORT, seed=3)
            made[watermark] = (whole, np.concatenate([chunk.samples for chunk in chunks]), chunks.marks)
            rate = tts.sample_rate
    for plain, marked in zip(made[False][:2], made[True][:2], strict=True):
        stream = WatermarkStream(rate)
        assert np.allclose(marked, np.concatenate((stream.mark(plain), stream.finish())), atol=1e-6)
        assert not np.allclose(marked, plain, atol=1e-4)
    assert made[True][2][-1].end_s == made[False][2][-1].end_s
