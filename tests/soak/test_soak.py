"""The soak in small; `make soak` runs it in full."""

import pytest

from tests.soak.soak import SURE_TO_FAIL, Plan, soak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generation", "requests"),
    [("models", 50), *(pytest.param(*one, marks=pytest.mark.long) for one in (("models_v3", 50), ("models_v1", 25)))],
)
def test_nothing_is_lost(request, generation, requests):
    report = soak(request.getfixturevalue(generation), Plan(requests=requests, users=12, faults=40, growth_mb=128.0))
    assert report.broken == [], str(report)
    assert report.faults >= len(SURE_TO_FAIL)
    assert report.outcomes["heard"] > requests / 4
    assert report.outcomes["OutOfMemory"] + report.outcomes["StageFailed"] > 0, report.outcomes
    assert "every bound was kept" in str(report)
