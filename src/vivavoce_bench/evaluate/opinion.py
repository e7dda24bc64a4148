"""Predict mean opinion scores (1 to 5) with the networks of the optional packages distillmos and speechmos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_bench.evaluate.speaking import Samples

SAMPLE_RATE = 16_000


class Judge(NamedTuple):
    """keys: names of the scores in reports; load: makes a function that scores samples, [n] float32 at 16 kHz."""

    package: str
    keys: tuple[str, ...]
    load: Callable[[], Callable[[Samples], Sequence[float]]]


def _distillmos() -> Callable[[Samples], Sequence[float]]:
    import distillmos
    import torch

    network: Any = distillmos.ConvTransformerSQAModel().eval()

    @torch.inference_mode()
    def score(samples: Samples) -> Sequence[float]:
        return (float(network(torch.from_numpy(np.asarray(samples, np.float32))[None])),)

    return score


def _dnsmos() -> Callable[[Samples], Sequence[float]]:
    from speechmos import dnsmos

    def score(samples: Samples) -> Sequence[float]:
        # The package refuses samples outside of ±1.
        found: Any = dnsmos.run(np.clip(samples, -1, 1), sr=SAMPLE_RATE)
        return float(found["ovrl_mos"]), float(found["p808_mos"])

    return score


JUDGES = {
    "distillmos": Judge("distillmos", ("mos_distill",), _distillmos),
    "dnsmos": Judge("speechmos", ("mos_dnsmos", "mos_p808"), _dnsmos),
}
"""Distill-MOS (arXiv:2502.05356), and DNSMOS (arXiv:2110.01763) in its overall and its ITU-T P.808 variant."""
KEYS = tuple(key for judge in JUDGES.values() for key in judge.keys)


def installed() -> tuple[str, ...]:
    return tuple(name for name, judge in JUDGES.items() if find_spec(judge.package) is not None)


def opinions(names: Sequence[str]) -> Callable[[Samples, int], dict[str, float]]:
    """Return a function: (samples [n], sample rate) → scores of these judges by key, {} for audio shorter than 0.1 s.

    InvalidRequest: a judge is unknown. MissingDependency: a judge's package is not installed.
    """
    loaded = []
    for name in names:
        if name not in JUDGES:
            raise InvalidRequest(f"judges: {name!r} is unknown; choose from {', '.join(JUDGES)}, or none")
        try:
            loaded.append((JUDGES[name].keys, JUDGES[name].load()))
        except ImportError as error:
            raise MissingDependency(
                f"judges: {name} cannot be used ({error}); pip install {JUDGES[name].package}, or leave it out"
            ) from None

    def judge(samples: Samples, rate: int) -> dict[str, float]:
        import soxr

        if len(samples) < rate / 10:
            return {}
        heard = samples if rate == SAMPLE_RATE else soxr.resample(samples, rate, SAMPLE_RATE)
        return {key: score for keys, scores in loaded for key, score in zip(keys, scores(heard), strict=True)}

    return judge
