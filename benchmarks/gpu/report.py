"""Shows the results as a table beside the targets, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce.checkpoint.config import Generation
from vivavoce_bench.measure import picture

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """One line of the table; `lower`: whether less is better."""

    label: str
    key: str
    target: float
    stretch: float
    lower: bool = True
    scale: float = 1.0

    def row(self, figures: Figures) -> tuple[str, str, str, str, str]:
        """Label, figure, target, stretch target, and which of the two was reached."""
        value = figures.get(self.key)
        if value is None:
            return self.label, "–", f"{self.target:g}", f"{self.stretch:g}", "not measured"
        value *= self.scale
        reached: Callable[[float], bool] = (lambda goal: value <= goal) if self.lower else (lambda goal: value >= goal)
        verdict = "stretch" if reached(self.stretch) else "target" if reached(self.target) else "missed"
        return self.label, f"{value:.3g}", f"{self.target:g}", f"{self.stretch:g}", verdict


GOALS: dict[Generation, tuple[Goal, ...]] = {
    # CosyVoice 1 is batched and has no kernels of its own; its targets are only what a listener needs.
    Generation.V1: (
        Goal("one stream: TTFB p50, ms", "stream1_ttfb_ms_p50", 1000, 500),
        Goal("64 listeners: TTFB p99, ms", "listeners64_ttfb_ms_p99", 2000, 1000),
        Goal("64 listeners: underruns", "listeners64_underruns", 0, 0),
        Goal("offline, 256 requests: audio s per s", "offline256_throughput_audio_s_per_s", 100, 200, lower=False),
    ),
    Generation.V2: (
        Goal("one stream: TTFB p50, ms", "stream1_ttfb_ms_p50", 50, 30),
        Goal("one stream: RTF", "stream1_rtf", 0.03, 0.02),
        Goal("64 listeners: TTFB p99, ms", "listeners64_ttfb_ms_p99", 200, 100),
        Goal("300 listeners: TTFB p99, ms", "listeners300_ttfb_ms_p99", 400, 400),
        Goal("300 listeners: underruns", "listeners300_underruns", 0, 0),
        Goal("600 listeners: TTFB p99, ms", "listeners600_ttfb_ms_p99", 400, 400),
        Goal("600 listeners: underruns", "listeners600_underruns", 0, 0),
        Goal("offline, 256 requests: audio s per s", "offline256_throughput_audio_s_per_s", 600, 1000, lower=False),
        Goal("decode step, 1 slot, ms", "decode_step_ms_1", 0.7, 0.5),
        Goal("decode step, 64 slots, ms", "decode_step_ms_64", 1.1, 0.7),
        Goal("decode step, 256 slots, ms", "decode_step_ms_256", 1.8, 1.3),
        Goal("flow at saturation, TFLOP/s", "flow_tflops_32x674", 300, 390, lower=False),
        Goal("vocoder, 32 rows: audio s per s", "vocoder_audio_s_per_s_32x500", 4000, 10_000, lower=False),
        Goal("memory, 256 offline, GB", "bounded_offline256_gpu_memory_reserved_bytes", 60, 60, scale=1e-9),
        Goal("memory, 20 listeners, GB", "bounded_listeners20_gpu_memory_reserved_bytes", 16, 16, scale=1e-9),
        Goal("first start, s", "start_first_s", 180, 180),
        Goal("second start, s", "start_second_s", 30, 10),
        Goal("second start, for 8 streams, s", "start_for_8_s", 30, 10),
    ),
    Generation.V3: (
        Goal("one stream: TTFB p50, ms", "stream1_ttfb_ms_p50", 45, 35),
        Goal("64 listeners: TTFB p99, ms", "listeners64_ttfb_ms_p99", 110, 110),
        Goal("450 listeners: underruns", "listeners450_underruns", 0, 0),
        Goal("600 listeners: underruns", "listeners600_underruns", 0, 0),
        Goal("offline, 256 requests: audio s per s", "offline256_throughput_audio_s_per_s", 450, 600, lower=False),
    ),
}


def table(figures: Figures) -> str:
    """The goals of the generation that was measured, as a Markdown table."""
    rows = [("figure", "measured", "target", "stretch", ""), ("---",) * 5]
    rows += [goal.row(figures) for goal in GOALS[Generation(figures["generation"])]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def draw(figures: Figures, path: Path) -> None:
    """Draw each stage's time over its floor, and TTFB by the number of listeners; errors as in `measure.picture`."""
    with picture(path, (12.0, 4.5), 2) as (left, right):
        names, ratios = _over_floors(figures)
        left.barh(names, ratios)
        left.axvline(1.0, color="black", linewidth=1)
        left.set(title="time over its floor", xscale="log", xlabel="measured / floor")
        left.invert_yaxis()
        counts = sorted(
            int(key[9 : -len("_ttfb_ms_p99")]) for key in figures if key.startswith("listeners") and "p99" in key
        )
        for percent in (50, 99):
            values = [figures[f"listeners{count}_ttfb_ms_p{percent}"] for count in counts]
            right.plot(counts, values, marker="o", label=f"p{percent}")
        right.set(title="first audio", xlabel="listeners at once", ylabel="ms", ylim=(0, None))
        right.legend()


def _over_floors(figures: Figures) -> tuple[Sequence[str], Sequence[float]]:
    found = {}
    for key, floor in figures.items():
        if "_floor_ms_" in key:
            stage, case = key.split("_floor_ms_")
            found[f"{stage.replace('_', ' ')} {case}"] = figures[f"{stage}_ms_{case}"] / floor
    return list(found), list(found.values())
