"""The drill of a replaced engine in small; `python -m tests.soak.upgrade` runs it in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.upgrade import Hearing, UpgradePlan, UpgradeReport, drill


@pytest.mark.process
def test_no_request_is_lost_while_the_engine_is_replaced(tmp_path: Path) -> None:
    variables = {"VIVAVOCE_MODEL_WARM_UP_S": 0, "VIVAVOCE_MODEL_TEXT_PROCESSES": 0}
    report = drill(UpgradePlan(listeners=3, seconds=0.0, variables=variables), tmp_path)
    assert report.broken == [], str(report)
    assert len(report.hearings) >= 6
    assert 0 < report.start_s <= report.replaced_s


def test_what_is_lost_is_noticed() -> None:
    whole = [Hearing(phase, 0.1, (), 1_000) for phase in ("before", "during", "after")]
    assert UpgradeReport(whole, 1_000).broken == []
    assert "3 requests, 0 lost" in str(UpgradeReport(whole, 1_000))
    cut, refused = Hearing("during", 0.1, (0.3,), 900), Hearing("during", 0.0, (), 0, "status 503: b''")
    assert len(UpgradeReport([*whole, cut], 1_000).broken) == 1
    assert UpgradeReport([*whole, refused], 1_000).broken[0] == "lost: status 503: b''"
    assert "nobody began to listen after" in UpgradeReport(whole[:2], 1_000).broken[0]
