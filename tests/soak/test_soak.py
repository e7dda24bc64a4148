"""The soak in small; `make soak` runs it in full."""

from tests.soak.soak import Plan, soak


def test_nothing_is_lost(models):
    report = soak(models, Plan(requests=80, users=12, faults=40))
    assert report.broken == [], str(report)
    assert report.faults > 3
    assert report.outcomes["heard"] > 25
    assert report.outcomes["OutOfMemory"] + report.outcomes["StageFailed"] > 0, report.outcomes
    assert "every bound was kept" in str(report)
