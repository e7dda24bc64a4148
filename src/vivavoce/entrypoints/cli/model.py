"""The model that a command works with: its flags, and loading it."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vivavoce.entrypoints.cli import flags
from vivavoce.entrypoints.cli.console import Reporter
from vivavoce.entrypoints.cli.flags import flag
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.checkpoint.folder import ModelCard
    from vivavoce.engine.settings import EngineSettings
    from vivavoce.entrypoints.python import Vivavoce
    from vivavoce.service.voices.voice import Voice


@dataclass(frozen=True)
class ModelChoice:
    """Which model, and where it runs."""

    model: flags.ModelOption = None
    device: flags.DeviceOption = "auto"
    dtype: flags.DtypeOption = "auto"
    variant: flags.VariantOption = None
    voices: flags.VoicesOption = None


@dataclass(frozen=True)
class EngineChoice:
    """The engine's bounds and modes."""

    admission: str = flag(
        "What becomes of streams beyond capacity: queue, refuse or all (they start anyway).", "NAME", default="queue"
    )
    memory: flags.MemoryOption = None
    """GB."""
    kernels: flags.KernelsOption = None
    deterministic: flags.DeterministicOption = False

    def settings(self) -> EngineSettings:
        """As the engine takes them; `InvalidRequest` if one is out of its limits."""
        from vivavoce.engine.admission import AdmissionMode
        from vivavoce.engine.settings import EngineSettings

        if self.admission not in set(AdmissionMode):
            known = ", ".join(mode.value for mode in AdmissionMode)
            raise InvalidRequest(f"admission: {self.admission!r} is unknown; use one of {known}")
        if self.memory is not None and not 0 < self.memory < 100_000:
            raise InvalidRequest(f"memory: {self.memory:g} GB cannot be; choose some gigabytes, such as 16")
        return EngineSettings(
            admission=AdmissionMode(self.admission),
            memory_bytes=None if self.memory is None else int(self.memory * 1e9),
            kernels=self.kernels,
            deterministic=self.deterministic,
        )


def load_model(
    choice: ModelChoice, reporter: Reporter, engine: EngineChoice = EngineChoice()
) -> tuple[Vivavoce, float]:
    """The model, and the seconds that loading it took; errors as in `vivavoce.load` and `EngineChoice.settings`."""
    name = choice.model or "the default model"
    with reporter.working(f"loading {name} …"):
        # The clock starts after the imports: they belong to the program, not to the model.
        from vivavoce.entrypoints.python import load
        from vivavoce.service.model_choice import model_folder

        started = time.perf_counter()
        tts = load(
            model_folder(choice.model),
            device=choice.device,
            dtype=choice.dtype,
            variant=choice.variant,
            voices=choice.voices,
            settings=engine.settings(),
        )
        return tts, time.perf_counter() - started


def named_voices(
    names: Sequence[str], prompt_texts: Sequence[str], known: Sequence[str], resolve: Callable[[Any, str], Voice]
) -> dict[str, Voice]:
    """The voices of these names and recordings by what they were called.

    prompt_texts: transcripts of the recordings among them, in their order, or none; known: names of stored and
    built-in voices; resolve: (name or recording, transcript) → voice.
    """
    recordings = [name for name in names if unicodedata.normalize("NFC", name) not in known]
    if prompt_texts and len(prompt_texts) != len(recordings):
        raise InvalidRequest(
            f"prompt_text: {len(prompt_texts)} given for {len(recordings)} recordings among the voices; give one "
            "for each recording, in their order, or none"
        )
    transcripts = dict(zip(recordings, prompt_texts, strict=True)) if prompt_texts else {}
    return {name: resolve(name, transcripts.get(name, "")) for name in names}


def note_if_no_real_model(card: ModelCard, reporter: Reporter) -> None:
    """Say why the audio is babble or a demo, and what to use instead."""
    if card.trained and not card.demo:
        return
    from vivavoce.checkpoint.folder import SUPPORTED
    from vivavoce.checkpoint.known_models import KNOWN_MODELS

    better = next(model.name for model in KNOWN_MODELS.values() if model.generation in SUPPORTED)
    what = card.description or "not trained"
    reporter.note(f"model {card.name} is {what}; use --model {better} (`vivavoce download {better}` brings it)")
