"""What a recogniser hears of a model in fewer bits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.eight_bits import emulate
from vivavoce.doors.cli.bench_quality import KEPT, ready_instruments
from vivavoce.doors.python import Vivavoce, load
from vivavoce.engine.engine import Engine
from vivavoce.engine.precision import Precision
from vivavoce.engine.settings import EngineSettings
from vivavoce.evaluate.assessment import assess
from vivavoce.evaluate.cases import cases_of
from vivavoce.evaluate.speaking import Clip
from vivavoce.models.build import build_models
from vivavoce.service.front_end import load_front_end
from vivavoce.service.synthesizer import Synthesizer
from vivavoce.service.voices.store import VoiceStore


def words(model: Path, precision: Precision, sentences: tuple[str, ...], jobs: int) -> dict[str, Any]:
    """The keys of `vivavoce bench --quality`; sentence i is spoken with seed i, whatever the precision."""
    with _speaker(model, precision) as tts:
        instruments, voice = ready_instruments(tts, sentences, jobs), tts.voice()
        name = voice.name or "default"
        clips = (
            Clip(case, name, tts.speak(case.text, voice, seed=seed).samples, tts.sample_rate, seed)
            for seed, case in enumerate(cases_of(sentences))
        )
        summary = assess(clips, {name: voice}, instruments).summary
    return {key: summary.get(key) for key in KEPT}


@contextmanager
def _speaker(model: Path, precision: Precision) -> Iterator[Vivavoce]:
    """On a CUDA device with our kernels; on a CPU the plain networks, rounded."""
    with tempfile.TemporaryDirectory() as voices:
        if torch.cuda.is_available():
            tts = load(model, voices=voices, settings=EngineSettings(precision=precision))
        else:
            models = build_models(model, torch.device("cpu"))
            emulate(models, precision)
            synthesizer = Synthesizer(Engine(models), load_front_end(model, models.config))
            tts = Vivavoce(synthesizer, VoiceStore(Path(voices)))
        with tts:
            yield tts
