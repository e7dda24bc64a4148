"""What an operator may choose, and what is planned where nothing was chosen."""

import pytest

from vivavoce.engine.settings import MAX_POSITIONS, EngineSettings, plan_memory
from vivavoce.errors import InvalidRequest


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"slots": 0}, "slots"), ({"slots": 5_000}, "slots"), ({"max_waiting": 0}, "max_waiting"),
     ({"state_bytes": -1}, "state_bytes")],
)  # fmt: skip
def test_settings_outside_their_limits_are_refused(settings, field):
    with pytest.raises(InvalidRequest, match=field):
        EngineSettings(**settings)


def test_what_was_chosen_stands(models):
    plan = plan_memory(models, EngineSettings(slots=3, state_bytes=0))
    assert (plan.slots, plan.state_bytes) == (3, 0)


def test_a_host_has_its_own_measures(models, monkeypatch):
    monkeypatch.setattr("vivavoce.engine.settings._host_memory", lambda: 1 << 30)
    plan = plan_memory(models, EngineSettings())
    assert (plan.slots, plan.capacity, plan.state_bytes) == (32, MAX_POSITIONS, 1 << 28)
