"""Every golden of the reference folder: the excerpt in the repository, or what VIVAVOCE_REFERENCE names."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from tests.parity.check import Check, Skip, close, close_rms, equal_ids, guarded
from tests.parity.compare_audio import compare_mels
from tests.parity.reference import Golden, Reference
from tests.parity.run import compare_one

ROOT = Path(os.environ.get("VIVAVOCE_REFERENCE") or Path(__file__).parents[1] / "data" / "parity")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(ROOT, tmp_path_factory.mktemp("checkpoints"))


def goldens() -> list[Golden]:
    return list(Reference(ROOT, Path()).goldens())


def test_there_are_goldens():
    assert goldens()


@pytest.mark.parametrize("golden", goldens(), ids=lambda golden: golden.label)
def test_golden(golden: Golden, reference: Reference):
    outcomes = list(compare_one(golden, reference))
    failed = [outcome.line() for outcome in outcomes if isinstance(outcome, Check) and not outcome.passed]
    assert not failed, "\n".join(failed)
    if not any(isinstance(outcome, Check) for outcome in outcomes):
        pytest.skip("; ".join({outcome.why for outcome in outcomes if isinstance(outcome, Skip)}))


def test_a_wrong_number_fails():
    """The comparisons themselves can fail."""
    assert not close("x", [1.0, 2.0], [1.0, 2.1], 0.05).passed
    assert not close("x", [1.0, float("nan")], [1.0, 2.0], 1.0).passed
    assert not close("x", [1.0, 2.0], [1.0], 1.0).passed
    assert not close("x", [float("-inf"), 0.0], [0.0, float("-inf")], 1.0).passed
    assert close("x", [float("-inf"), 0.0], [float("-inf"), 0.0], 0.0).passed
    assert not close_rms("x", [1.0, 2.0], [1.0, 3.0], 0.5).passed
    assert not equal_ids("x", [1, 2, 3], [1, 2]).passed
    assert not equal_ids("x", [1, 2], [1, 3]).passed


def test_mels_differ_by_more_than_the_rounding_of_an_fft():
    """Beside a frame's loudest bin, of e^0.5, the last bits of a quiet one are not the networks' concern."""
    theirs = torch.tensor([[0.5, -6.0, -10.5, math.log(1e-5)]])
    rounded = (theirs.exp() + torch.tensor([[1e-6, 1e-7, 2e-8, 0.0]])).log()
    assert not close("x", rounded, theirs, 5e-4).passed
    assert all(check.passed for check in compare_mels("x", rounded, theirs))
    for wrong in ([1e-3, 0, 0, 0], [0, 1e-3, 0, 0], [0, 0, 0.3, 0], [0, 0, 0, 0.5], [0, float("nan"), 0, 0]):
        assert not all(check.passed for check in compare_mels("x", theirs + torch.tensor([wrong]), theirs))


def test_an_exception_is_one_failure():
    def broken():
        yield Check("first", 0, 0)
        raise KeyError("an array")

    first, second = guarded("case", broken())
    assert first.passed
    assert not second.passed
    assert "KeyError" in second.line()
