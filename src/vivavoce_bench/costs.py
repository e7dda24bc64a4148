"""Measured costs for plans and simulations: of batches on one H200, by generation, and of a server's entry process."""

from __future__ import annotations

from collections.abc import Mapping

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.cost_model import GPU_PRIORS, Coefficients, Priors, Stage

ENTRY_LISTENERS = 350
"""Listeners of 16-bit samples over HTTP that a server's entry process carries with 70 % of the core on which it was
measured, a slow one (benchmarks/results/entry)."""
MEASURED_COSTS: Mapping[Generation, Priors] = {
    Generation.V1: {
        Stage.PREFILL: Coefficients(1.8e-2, 9e-4, 0.0, 5.8e-10),
        Stage.DECODE: Coefficients(9.5e-3, 3.8e-6, 0.0, 7.1e-8),
        Stage.FLOW: Coefficients(2.4e-1, 2.6e-2, 0.0, 0.0),
        Stage.VOCODER: Coefficients(3.7e-3, 2.4e-4, 1e-5, 0.0),
    },
    Generation.V2: GPU_PRIORS,
    Generation.V3: {
        Stage.PREFILL: Coefficients(2.1e-3, 7.3e-4, 2.6e-6, 2.5e-9),
        Stage.DECODE: Coefficients(3.1e-3, 7.5e-6, 0.0, 6.9e-9),
        Stage.FLOW: Coefficients(1.3e-2, 1.6e-4, 1.9e-5, 3.3e-9),
        Stage.VOCODER: Coefficients(7.8e-4, 1.4e-5, 2.2e-6, 0.0),
    },
}
"""Cost coefficients in seconds, fitted under load to the released models in float16 (benchmarks/results/gpu)."""
ALONE_COSTS: Mapping[Generation, Priors] = {
    Generation.V2: {
        Stage.PREFILL: Coefficients(9.8e-4, 7.1e-5, 8.5e-7, 3.1e-9),
        Stage.DECODE: Coefficients(6e-4, 2.7e-6, 0.0, 1.2e-9),
        Stage.FLOW: Coefficients(2.11e-2, 3.6e-4, 9.8e-6, 3.6e-9),
        Stage.VOCODER: Coefficients(8.3e-4, 1.4e-5, 2e-6, 0.0),
    },
    Generation.V3: {
        Stage.PREFILL: Coefficients(1.5e-3, 3.8e-4, 1.1e-6, 0.0),
        Stage.DECODE: Coefficients(6e-4, 2.7e-6, 0.0, 1.2e-9),
        Stage.FLOW: Coefficients(1.1e-2, 3e-4, 2e-5, 2.8e-9),
        Stage.VOCODER: Coefficients(8.2e-4, 3.7e-5, 1.9e-6, 0.0),
    },
}
"""Cost coefficients of batches that run alone on the H200, fitted to the stages of `h200.json` and `h200-v3.json`."""
