"""The flags that choose a command's model and engine, and a function that loads the model."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter
from vivavoce.cli.flags import flag
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.api import Vivavoce
    from vivavoce.checkpoint.folder import ModelCard
    from vivavoce.engine.settings import EngineSettings


@dataclass(frozen=True)
class ModelChoice:
    model: flags.ModelOption = None
    device: flags.DeviceOption = "auto"
    dtype: flags.DtypeOption = "auto"
    variant: flags.VariantOption = None
    voices: flags.VoicesOption = None


@dataclass(frozen=True)
class Spread:
    gpus: str | None = flag(
        "One engine on each of these GPUs: all, or numbers.  [default: one engine on --device]", "N,N"
    )
    engines: int = flag("Number of engines that share the device; for CPUs.", "NUMBER", default=1, min=1, max=64)

    def over(self, device: str) -> str | list[str]:
        from vivavoce_fleet.devices import devices_of

        return device if self == Spread() else devices_of(self.gpus, self.engines, device)


@dataclass(frozen=True)
class BackendChoice:
    lm_backend: str = flag("Runtime of the language model: torch, vllm or trtllm.", "NAME", default="torch")
    flow_backend: str = flag("Runtime of the flow: torch, tensorrt, onnx, jit or aoti.", "NAME", default="torch")
    trt_concurrent: int = flag("Batches that TensorRT runs concurrently.", "NUMBER", default=1)
    tp: int = flag("GPUs that share each layer of the language model.", "NUMBER", default=1)
    pp: int = flag("GPUs among which the language model's layers are divided.", "NUMBER", default=1)
    trust_model_code: bool = flag(
        "Run code from the model's folder (TorchScript, engines) that was not exported on this machine.", default=False
    )


@dataclass(frozen=True)
class EngineChoice:
    admission: str = flag("Streams beyond capacity: queue, refuse or all (start them anyway).", "NAME", default="queue")
    memory: flags.MemoryOption = None
    kernels: flags.KernelsOption = None
    deterministic: bool = flag("Same bits regardless of other requests; slower, for audits and tests.", default=False)
    flow_steps: str = flag("Steps of the flow: official or fast.", "CHOICE", default="official")
    watermark: flags.WatermarkOption = False

    def settings(self, backends: BackendChoice = BackendChoice()) -> EngineSettings:
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
            flow_steps=self.flow_steps,
            watermark=self.watermark,
            **vars(backends),
        )


def load_model(
    choice: ModelChoice,
    reporter: Reporter,
    engine: EngineChoice = EngineChoice(),
    backends: BackendChoice = BackendChoice(),
    spread: Spread = Spread(),
    adapter: Path | None = None,
) -> tuple[Vivavoce, float]:
    """Load a model; return it and the seconds of loading. adapter: a LoRA adapter's folder, which names it."""
    name = choice.model or "the default model"
    with reporter.working(f"loading {name} …"):
        # The clock starts after the imports: they belong to the program, not to the model.
        from vivavoce.api import load
        from vivavoce.frontend.model_choice import model_folder

        settings = engine.settings(backends)
        if adapter is not None:
            settings = replace(settings, adapters={adapter.absolute().name: adapter})
        started = time.perf_counter()
        tts = load(
            model_folder(choice.model),
            device=spread.over(choice.device),
            dtype=choice.dtype,
            variant=choice.variant,
            voices=choice.voices,
            settings=settings,
        )
        return tts, time.perf_counter() - started


def note_if_no_real_model(card: ModelCard, reporter: Reporter) -> None:
    """Print a note if the model is not trained (its audio is random) or, once per machine, if it is a demo."""
    if card.trained and (not card.demo or reporter.quiet or _was_noted(card.name)):
        return
    from vivavoce.checkpoint.known_models import KNOWN_MODELS

    better = next(iter(KNOWN_MODELS))
    what = card.description or "not trained"
    reporter.note(f"model {card.name} is {what}; use --model {better} (`vivavoce download {better}` brings it)")


def _was_noted(name: str) -> bool:
    """Return whether the demo notice was shown before, and record that it is shown now; False if recording fails."""
    from vivavoce.checkpoint.known_models import models_home

    try:
        stamp = models_home().parent / f"noted-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch(exist_ok=False)
    except FileExistsError:
        return True
    except OSError:
        pass
    return False
