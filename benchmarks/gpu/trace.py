"""Profiles the GPU under load: its idle share, each CUDA stream's share, and the kernels that take most time.

    python -m benchmarks.gpu.trace --listeners 64 --seconds 2 --out benchmarks/results/gpu/trace-64.json

`--offline N` profiles N offline utterances at once instead. `--chrome FILE` writes the whole trace for a viewer.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.loads import Load, measure
from benchmarks.gpu.model import make_model, origin
from vivavoce.api import load
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.settings import EngineSettings
from vivavoce_bench.measure import json_text, save_json

_ON_GPU = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]

MOST_KERNELS = 25


class Span(NamedTuple):
    """One kernel or copy on the device; times in nanoseconds."""

    start: int
    end: int
    stream: int
    name: str


def busy_ns(spans: Iterable[Span]) -> int:
    """Nanoseconds in which at least one of the spans runs."""
    total, until = 0, 0
    for span in sorted(spans):
        total += max(0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def summary(spans: list[Span]) -> dict[str, Any]:
    """Shares of the time between the first span's start and the last one's end."""
    window = max(span.end for span in spans) - min(span.start for span in spans)
    streams = sorted({span.stream for span in spans})
    seconds: Counter[str] = Counter()
    counts = Counter(span.name for span in spans)
    for span in spans:
        seconds[span.name] += span.end - span.start
    return {
        "window_s": window / 1e9,
        "idle_share": 1 - busy_ns(spans) / window,
        "busy_share_by_stream": {
            str(stream): busy_ns(span for span in spans if span.stream == stream) / window for stream in streams
        },
        "kernels_per_s": len(spans) / window * 1e9,
        "kernels": [
            {"name": name[:80], "share": ns / window, "calls": counts[name], "mean_us": ns / counts[name] / 1e3}
            for name, ns in seconds.most_common(MOST_KERNELS)
        ],
    }


def main() -> None:
    """Load the engine, wait until the load is at its peak, and profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listeners", type=int, default=64)
    parser.add_argument("--offline", type=int, metavar="N")
    parser.add_argument("--after", type=float, default=8.0, metavar="S", help="seconds of load before profiling")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--model", type=Path, default=Path("/tmp/vivavoce-v2-release"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chrome", type=Path)
    options = parser.parse_args()
    model = make_model(options.model)
    tts = load(model, settings=EngineSettings(admission=AdmissionMode.ALL))
    tts.warm_up()
    asked = Load.listeners(options.listeners)
    if options.offline:
        asked = Load("offline", options.offline, options.offline, offline=True)
    user = threading.Thread(target=measure, args=(tts, model, asked))
    user.start()
    time.sleep(0.3 if options.offline else options.after)
    with profile(activities=[ProfilerActivity.CUDA]) as looked:
        time.sleep(options.seconds)
        torch.cuda.synchronize()
    user.join()
    tts.close()
    assert looked.profiler is not None
    found = [
        Span(event.start_ns(), event.start_ns() + event.duration_ns(), event.device_resource_id(), event.name())
        for event in looked.profiler.kineto_results.events()
        if event.device_type() == _ON_GPU and event.duration_ns() > 0
    ]
    result = {**origin("benchmarks.gpu.trace", tts.device), "load": asked.options(), **summary(found)}
    save_json(result, options.out)
    if options.chrome:
        looked.export_chrome_trace(str(options.chrome))
    print(json_text(result))


if __name__ == "__main__":
    main()
