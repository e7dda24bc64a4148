"""The model that a command works with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.doors.cli.console import Reporter
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.checkpoint.folder import ModelCard
    from vivavoce.doors.python import Vivavoce
    from vivavoce.engine.settings import EngineSettings


@dataclass(frozen=True)
class ModelChoice:
    """The model options as they were typed."""

    model: str | None
    device: str = "auto"
    dtype: str = "auto"
    variant: str | None = None
    voices: str | Path | None = None


@dataclass(frozen=True)
class EngineChoice:
    """The engine's options as they were typed."""

    admission: str = "queue"
    memory_gb: float | None = None
    kernels: bool | None = None
    deterministic: bool = False
    int8_lm: bool = False
    fp8_flow: bool = False

    def settings(self) -> EngineSettings:
        """As the engine takes them.

        Raises:
            InvalidRequest: one is out of its limits.
        """
        from vivavoce.engine.admission import AdmissionMode
        from vivavoce.engine.precision import FlowLinear, LMWeights, Precision
        from vivavoce.engine.settings import EngineSettings

        if self.admission not in set(AdmissionMode):
            known = ", ".join(mode.value for mode in AdmissionMode)
            raise InvalidRequest(f"admission: {self.admission!r} is unknown; use one of {known}")
        if self.memory_gb is not None and not 0 < self.memory_gb < 100_000:
            raise InvalidRequest(f"memory: {self.memory_gb:g} GB cannot be; choose some gigabytes, such as 16")
        return EngineSettings(
            admission=AdmissionMode(self.admission),
            memory_bytes=None if self.memory_gb is None else int(self.memory_gb * 1e9),
            kernels=self.kernels,
            deterministic=self.deterministic,
            precision=Precision(
                LMWeights.INT8 if self.int8_lm else LMWeights.BITS16,
                FlowLinear.FP8 if self.fp8_flow else FlowLinear.BITS16,
            ),
        )


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready, and the seconds that this took."""

    tts: Vivavoce
    seconds: float


def load_model(choice: ModelChoice, reporter: Reporter, engine: EngineChoice = EngineChoice()) -> LoadedModel:
    """Load the model, with a spinner; errors as in `vivavoce.load` and `EngineChoice.settings`."""
    name = choice.model or "the default model"
    with reporter.working(f"loading {name} …"):
        # The clock starts after the imports: they are the program's, not the model's.
        from vivavoce.doors.python import load
        from vivavoce.service.default_model import model_folder

        started = time.perf_counter()
        folder = model_folder(choice.model)
        tts = load(
            folder,
            device=choice.device,
            dtype=choice.dtype,
            variant=choice.variant,
            voices=choice.voices,
            settings=engine.settings(),
        )
        return LoadedModel(tts, time.perf_counter() - started)


def note_if_no_real_model(card: ModelCard, reporter: Reporter) -> None:
    """Tell who hears babble or a demo why, and what to use instead."""
    if card.trained and not card.demo:
        return
    from vivavoce.checkpoint.folder import SUPPORTED
    from vivavoce.checkpoint.hub.registry import KNOWN_MODELS

    better = next(model.name for model in KNOWN_MODELS.values() if model.generation in SUPPORTED)
    what = card.description or "not trained"
    reporter.note(f"model {card.name} is {what}; use --model {better} (`vivavoce download {better}` brings it)")
