"""Names of the runtimes that can run a network, and checks of the settings that belong to them.

`vivavoce_runtimes.registry` makes the backends. Each backend has its own module there, imported when it is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LM_BACKENDS = ("torch", "vllm", "trtllm")
"""Runtimes of the language model; torch: the engine's own PyTorch stage."""
FLOW_BACKENDS = ("torch", "tensorrt", "onnx", "jit", "aoti")
"""Runtimes of the flow's velocity estimator; torch: the engine's own PyTorch stage."""
BACKEND_SETTINGS = ("lm_backend", "flow_backend", "trt_concurrent", "tp", "pp", "trust_model_code")
"""Fields of `EngineSettings` that choose backends; command-line flags and API parameters have the same names."""
MOST_CONTEXTS, MOST_PARTS = 64, 64


def backend_problems(given: Any) -> Iterator[str]:
    """Yield a message, beginning with the setting's name, for each backend setting that is unknown or contradictory.

    given: any object with the fields `BACKEND_SETTINGS` and `deterministic`, such as `EngineSettings`.
    """
    lm_backend, flow_backend = given.lm_backend, given.flow_backend
    names = (("lm_backend", lm_backend, LM_BACKENDS), ("flow_backend", flow_backend, FLOW_BACKENDS))
    for name, value, known in names:
        if value not in known:
            yield f"{name}: {value!r} is unknown; use one of {', '.join(known)}"
        elif given.deterministic and value != "torch":
            yield f"deterministic: {name} {value} may give other bits each time; use torch, or leave deterministic out"
    counts = (
        ("trt_concurrent", given.trt_concurrent, MOST_CONTEXTS, flow_backend == "tensorrt", "flow_backend tensorrt"),
        ("tp", given.tp, MOST_PARTS, lm_backend != "torch", "lm_backend vllm or trtllm"),
        ("pp", given.pp, MOST_PARTS, lm_backend != "torch", "lm_backend vllm or trtllm"),
    )
    for name, count, most, used, whose in counts:
        if not 1 <= count <= most:
            yield f"{name}: {count} is outside of 1 … {most}; choose a number inside"
        elif count > 1 and not used:
            yield f"{name}: {count} is for {whose}; choose that, or leave {name} out"
