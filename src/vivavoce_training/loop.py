"""The training loop that all parts share: schedule, CUDA graphs, averages, resumable state, log and curves.

Each part has a `TrainingStep`, which draws a batch and calls `Optimizer.update`. On a GPU, the first few steps run
eagerly; then the step is captured as a CUDA graph and replayed, because these models are so small that launching their
kernels takes longer than running them. A step must therefore be capturable:

- it draws batches with torch's default generator, from tensors that are already on the device;
- shapes are fixed for each *variant* of the step (lengths of crops, with or without an adversary), because each variant
  becomes a graph;
- it never waits for the device: no `.item()`, `.cpu()`, `nonzero`, boolean indexing, or branches on tensor values.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vivavoce.errors import InvalidRequest
from vivavoce.files import replacing
from vivavoce_training.record import Record

WARM_STEPS = 3  # eager steps of a variant before its capture; libraries make their allocations and handles in them
LOG_SECONDS = 10.0
SAVE_SECONDS = 120.0
AVERAGE_EVERY = 10
MAX_AHEAD = 16  # most steps queued on the device; with longer queues, the measured time would be wrong


@dataclass(frozen=True)
class Recipe:
    """Settings of one optimizer (AdamW, arXiv:1711.05101, with a cosine schedule)."""

    learning_rate: float
    warmup_steps: int = 200
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    final_fraction: float = 0.02  # learning rate at the end of the budget, as a fraction of the highest

    def rate(self, step: int, progress: float) -> float:
        """Return the learning rate at a step; progress: share of the budget that is spent, in [0, 1]."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return self.learning_rate * warm * (self.final_fraction + (1 - self.final_fraction) * cosine)


class Optimizer:
    """AdamW over some parameters, with clipping; its update can be captured in a CUDA graph."""

    def __init__(self, parameters: Iterable[nn.Parameter], recipe: Recipe) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.recipe = recipe
        device = self.parameters[0].device
        self._rate = torch.tensor(recipe.rate(0, 0.0), device=device)
        on_gpu = device.type == "cuda"
        self._adam = torch.optim.AdamW(
            self.parameters,
            lr=self._rate,
            betas=recipe.betas,
            weight_decay=recipe.weight_decay,
            fused=on_gpu,
            capturable=on_gpu,
        )

    def update(self, loss: Tensor) -> None:
        """Take one step along the clipped gradients of `loss`."""
        self._adam.zero_grad(set_to_none=True)
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm, foreach=True)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def set_rate(self, step: int, progress: float) -> float:
        rate = self.recipe.rate(step, progress)
        self._rate.fill_(rate)
        return rate

    def state_dict(self) -> dict[str, object]:
        return self._adam.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the state that `state_dict` gave."""
        self._adam.load_state_dict(state)
        for group in self._adam.param_groups:
            group["lr"] = self._rate


@dataclass(frozen=True)
class Budget:
    """When a training ends: after `seconds` of training or after `steps`; if both are given, when the first is reached.

    The learning rate's schedule spans the whole budget. `piece_seconds` ends one run earlier; the next run continues.
    """

    seconds: float | None = None
    steps: int | None = None
    piece_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.steps is None:
            raise InvalidRequest("budget: none is given, the training would never end; add --seconds or --steps")
        for name, value in (("seconds", self.seconds), ("steps", self.steps)):
            if value is not None and value <= 0:
                raise InvalidRequest(f"{name}: {value} is not above 0; give a length of the training")

    def progress(self, seconds: float, steps: int) -> float:
        """Return the share of the budget that is spent; 1.0 or more: the training is over."""
        spent = ((seconds, self.seconds), (steps, self.steps))
        return max(done / of for done, of in spent if of is not None)


class Average:
    """Exponential moving average of a module's parameters. Early in the training, old values decay faster."""

    def __init__(self, module: nn.Module, decay: float = 0.999) -> None:
        self._decay = decay
        self._current = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
        self._mean = {name: tensor.clone() for name, tensor in self._current.items()}

    def update(self, step: int) -> None:
        """Add the current parameters to the mean; called every `AVERAGE_EVERY` steps."""
        decay = min(self._decay, (1 + step) / (10 + step)) ** AVERAGE_EVERY
        torch._foreach_lerp_([*self._mean.values()], [*self._current.values()], 1 - decay)

    def state_dict(self) -> dict[str, Tensor]:
        return self._mean

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that `state_dict` gave."""
        for name, mean in self._mean.items():
            mean.copy_(state[name])


class TrainingStep(ABC):
    """One training step of a part. The loop sets the optimizers' rates, and saves all optimizers and modules."""

    optimizers: Mapping[str, Optimizer]
    modules: Mapping[str, nn.Module]  # the result of a training is the moving average of the first module

    @abstractmethod
    def __call__(self, variant: int) -> dict[str, Tensor]:
        """Draw a batch, and update the weights with the optimizers. Return scalars to log."""

    def variant(self, step: int, progress: float) -> int:
        return 0


def train(
    part: str,
    body: TrainingStep,
    budget: Budget,
    folder: Path,
    *,
    device: torch.device,
    validate: Callable[[], dict[str, float]] | None = None,
    validate_seconds: float = 60.0,
) -> dict[str, Tensor]:
    """Train until the budget or the piece is spent; continue from a saved state in `folder`, if there is one.

    part: name of the log, the curves and the state in `folder` (`part.state.pt`); device: "cuda" uses CUDA graphs;
    validate: measures the modules, outside of the graphs and in eval mode, every `validate_seconds`. Returns the moving
    average of the step's first module, float32 by name, on the CPU. InvalidRequest: the state is of another model.
    """
    record, average = Record(folder, part), Average(next(iter(body.modules.values())))
    state_file = folder / f"{part}.state.pt"
    step, spent = 0, 0.0
    if state_file.is_file():
        step, spent = _restore(state_file, body, average, device)
        record.note(f"continues at step {step} after {spent:.0f} s")
    if validate is not None and step == 0:
        record.validation(0, 0.0, _evaluated(validate, body))  # the measures before training
    steps = _Steps(body, device)
    started = last_log = last_save = last_validation = time.monotonic()
    first = step
    for module in body.modules.values():
        module.train()
    while True:
        now = time.monotonic()
        total = spent + now - started
        progress = budget.progress(total, step)
        piece_over = budget.piece_seconds is not None and now - started >= budget.piece_seconds
        if now - last_save >= SAVE_SECONDS or progress >= 1 or piece_over:
            _save(state_file, step, total, body, average)
            last_save = now
        if progress >= 1 or piece_over:
            break
        if validate is not None and now - last_validation >= validate_seconds:
            record.validation(step, total, _evaluated(validate, body))
            last_validation = time.monotonic()
        rate = max(optimizer.set_rate(step, progress) for optimizer in body.optimizers.values())
        values = steps.run(body.variant(step, progress))
        step += 1
        if step % AVERAGE_EVERY == 0:
            average.update(step)
        record.add(values)
        if device.type == "cuda" and step % MAX_AHEAD == 0:
            torch.cuda.synchronize(device)
        if now - last_log >= LOG_SECONDS:
            record.flush(step, total, rate, (step - first) / (now - started))
            last_log = time.monotonic()
    record.flush(step, total, rate if step > first else 0.0, (step - first) / max(1e-9, time.monotonic() - started))
    if validate is not None:
        record.validation(step, total, _evaluated(validate, body))
    record.plot()
    return {name: tensor.float().cpu() for name, tensor in average.state_dict().items()}


class _Steps:
    """Runs steps: eagerly on a CPU; on a GPU, after a few eager steps, as one CUDA graph per variant."""

    def __init__(self, body: TrainingStep, device: torch.device) -> None:
        self._body, self._on_gpu = body, device.type == "cuda"
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]] = {}
        self._plain: dict[int, int] = {}
        self._side = torch.cuda.Stream(device) if self._on_gpu else None

    def run(self, variant: int) -> dict[str, Tensor]:
        if not self._on_gpu:
            return _detached(self._body(variant))
        if variant in self._graphs:
            graph, values = self._graphs[variant]
            graph.replay()
            return values
        done = self._plain.get(variant, 0)
        assert self._side is not None
        if done < WARM_STEPS:
            self._plain[variant] = done + 1
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                values = _detached(self._body(variant))
            torch.cuda.current_stream().wait_stream(self._side)
            return values
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values = _detached(self._body(variant))
        self._graphs[variant] = graph, values
        graph.replay()
        return values


def _detached(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().float() for name, value in values.items()}


def _evaluated(validate: Callable[[], dict[str, float]], body: TrainingStep) -> dict[str, float]:
    for module in body.modules.values():
        module.eval()
    with torch.no_grad():
        values = validate()
    for module in body.modules.values():
        module.train()
    return values


def _save(path: Path, step: int, seconds: float, body: TrainingStep, average: Average) -> None:
    state = {
        "step": step,
        "seconds": seconds,
        "optimizers": {name: optimizer.state_dict() for name, optimizer in body.optimizers.items()},
        "modules": {name: module.state_dict() for name, module in body.modules.items()},
        "average": average.state_dict(),
    }
    with replacing(path) as file:
        torch.save(state, file)


def _restore(path: Path, body: TrainingStep, average: Average, device: torch.device) -> tuple[int, float]:
    state = torch.load(path, map_location=device, weights_only=True)
    try:
        for name, optimizer in body.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, module in body.modules.items():
            module.load_state_dict(state["modules"][name])
        average.load_state_dict(state["average"])
    except (KeyError, RuntimeError, ValueError):
        raise InvalidRequest(f"out: {path} is of a model of other sizes; name a new folder") from None
    return int(state["step"]), float(state["seconds"])
