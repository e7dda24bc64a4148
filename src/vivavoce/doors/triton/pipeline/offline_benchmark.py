"""Stage 6: texts in batches without a server, by runtime and batch size."""

from __future__ import annotations

import json
from typing import Any

from vivavoce.doors.triton.pipeline.context import Context
from vivavoce.doors.triton.pipeline.file_facts import file_facts


def benchmark_inputs(context: Context) -> dict[str, Any]:
    """What the result depends on."""
    settings = context.settings
    sizes = settings.batch_sizes
    return {
        "model": context.work.made(0),
        "conversion": context.work.made(1),
        "backends": list(settings.backends),
        "batch_sizes": None if sizes is None else list(sizes),
        "manifest": file_facts(settings.asked.manifest),
        "device": settings.device,
    }


def benchmark(context: Context) -> dict[str, Any]:
    """Run `vivavoce bench offline`; a server of ours is stopped before, as it would share the machine.

    Raises:
        VivavoceError: the benchmark was refused or failed.
    """
    settings, work = context.settings, context.work
    context.serving.stop()
    figures = work.results(6) / "offline.json"
    figures.parent.mkdir(parents=True, exist_ok=True)
    converted = work.made(1)
    arguments: list[object] = ["--model", work.made(0)["model_dir"], "--device", settings.device, "--json", figures]
    for backend in settings.backends:
        arguments += ["--backend", backend]
    if settings.batch_sizes is not None:
        arguments += ["--batch-size", ",".join(map(str, settings.batch_sizes))]
    if set(settings.backends) - {"torch"}:
        arguments += ["--llm-model-name-or-path", converted["merged_dir"]]
    if "trtllm" in settings.backends and converted["engine_dir"]:
        arguments += ["--engine-dir", converted["engine_dir"]]
    if settings.asked.manifest is not None:
        arguments += ["--manifest", settings.asked.manifest]
    context.vivavoce("bench", "offline", *arguments)
    return {"figures": str(figures), "runs": len(json.loads(figures.read_text(encoding="utf-8"))["runs"])}
