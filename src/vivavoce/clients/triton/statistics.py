"""Triton's own statistics of its models, and what a load added to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Spent:
    """How often something was done, and how long it took in all."""

    count: int = 0
    ns: int = 0

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.count - before.count, self.ns - before.ns)

    @property
    def mean_ms(self) -> float | None:
        """Milliseconds each; None: it was never done."""
        return self.ns / self.count / _NS_PER_MS if self.count else None


@dataclass(frozen=True)
class BatchStatistics:
    """Executions of one batch size."""

    compute_input: Spent = Spent()
    compute_infer: Spent = Spent()
    compute_output: Spent = Spent()

    def __sub__(self, before: BatchStatistics) -> BatchStatistics:
        return BatchStatistics(
            self.compute_input - before.compute_input,
            self.compute_infer - before.compute_infer,
            self.compute_output - before.compute_output,
        )


@dataclass(frozen=True)
class ModelStatistics:
    """One version of a model: requests by where their time went, and executions by their batch size."""

    inferences: int
    executions: int
    success: Spent
    fail: Spent
    queue: Spent
    compute_input: Spent
    compute_infer: Spent
    compute_output: Spent
    batches: Mapping[int, BatchStatistics]

    def __sub__(self, before: ModelStatistics) -> ModelStatistics:
        batches = {size: one - before.batches.get(size, BatchStatistics()) for size, one in self.batches.items()}
        return ModelStatistics(
            self.inferences - before.inferences,
            self.executions - before.executions,
            self.success - before.success,
            self.fail - before.fail,
            self.queue - before.queue,
            self.compute_input - before.compute_input,
            self.compute_infer - before.compute_infer,
            self.compute_output - before.compute_output,
            {size: one for size, one in sorted(batches.items()) if one.compute_infer.count > 0},
        )

    def to_json(self) -> dict[str, Any]:
        """Counts, and the milliseconds of each part on average."""
        return {
            "inferences": self.inferences,
            "executions": self.executions,
            "success": self.success.count,
            "fail": self.fail.count,
            **{f"{part}_ms_avg": getattr(self, part).mean_ms for part in _PARTS},
            "batches": {
                str(size): {
                    "executions": one.compute_infer.count,
                    **{f"{part}_ms_avg": getattr(one, part).mean_ms for part in _PARTS[1:]},
                }
                for size, one in self.batches.items()
            },
        }


Statistics = Mapping[tuple[str, str], ModelStatistics]
"""By model and version."""


def parse_statistics(answer: Mapping[str, Any]) -> Statistics:
    """From Triton's answer as JSON; numbers may be strings, and what is 0 may be missing."""
    return {(one["name"], one.get("version", "")): _model(one) for one in answer.get("model_stats", ())}


def difference(after: Statistics, before: Statistics) -> Statistics:
    """What was added in between, for the models that did anything."""
    nothing = _model({})
    added = {key: one - before.get(key, nothing) for key, one in sorted(after.items())}
    return {key: one for key, one in added.items() if one.success.count or one.fail.count or one.executions}


def statistics_text(statistics: Statistics) -> str:
    """Some lines per model."""
    lines: list[str] = []
    for (name, version), one in statistics.items():
        lines.append(
            f"{name} (version {version}): {one.inferences} inferences in {one.executions} executions, "
            f"{one.fail.count} failed"
        )
        lines.append("  each, on average: " + _times(one, _PARTS))
        for size, batch in one.batches.items():
            executions = batch.compute_infer.count
            lines.append(f"  batch size {size}: {executions} executions, each " + _times(batch, _PARTS[1:]))
    return "\n".join(lines) if lines else "the server counted nothing"


def _times(one: ModelStatistics | BatchStatistics, parts: Sequence[str]) -> str:
    means = ((part.replace("_", " "), getattr(one, part).mean_ms) for part in parts)
    return ", ".join(f"{label} {'–' if mean is None else f'{mean:.3f} ms'}" for label, mean in means)


def _model(one: Mapping[str, Any]) -> ModelStatistics:
    stats = one.get("inference_stats", {})
    return ModelStatistics(
        inferences=int(one.get("inference_count", 0)),
        executions=int(one.get("execution_count", 0)),
        success=_spent(stats, "success"),
        fail=_spent(stats, "fail"),
        queue=_spent(stats, "queue"),
        compute_input=_spent(stats, "compute_input"),
        compute_infer=_spent(stats, "compute_infer"),
        compute_output=_spent(stats, "compute_output"),
        batches={int(batch["batch_size"]): _batch(batch) for batch in one.get("batch_stats", ())},
    )


def _batch(batch: Mapping[str, Any]) -> BatchStatistics:
    return BatchStatistics(*(_spent(batch, part) for part in _PARTS[1:]))


def _spent(stats: Mapping[str, Any], part: str) -> Spent:
    found = stats.get(part, {})
    return Spent(int(found.get("count", 0)), int(found.get("ns", 0)))
