"""What listeners met, in counters."""

from __future__ import annotations

import pytest

from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.meters import Meters


def test_nothing_has_happened_yet() -> None:
    snapshot = Meters().snapshot()
    assert snapshot.doors == ()
    assert (snapshot.active, snapshot.underruns, snapshot.audio_s, snapshot.characters) == (0, 0, 0.0, 0)


def test_requests_are_counted_by_door_and_end() -> None:
    meters = Meters()
    for _ in range(3):
        meters.accepted("http")
    meters.accepted("websocket")
    meters.ended("http", FinishReason.STOP, 2.0, 1.0)
    meters.ended("http", FinishReason.CANCELLED, 0.5, 4.0)
    meters.refused("grpc", "overloaded")
    meters.refused("grpc", "overloaded")
    meters.refused("grpc", "invalid_text")
    snapshot = meters.snapshot()
    grpc, http, websocket = snapshot.doors
    assert [door.door for door in snapshot.doors] == ["grpc", "http", "websocket"]
    assert (http.accepted, http.active, websocket.active, grpc.active) == (3, 1, 1, 0)
    assert snapshot.active == 2
    assert http.ended == {
        FinishReason.STOP: 1,
        FinishReason.LENGTH: 0,
        FinishReason.CANCELLED: 1,
        FinishReason.ERROR: 0,
    }
    assert grpc.refused == {"overloaded": 2, "invalid_text": 1}
    assert snapshot.audio_s == 2.5
    assert (http.wall_s.count, http.wall_s.total) == (2, 5.0)


def test_first_audio_belongs_to_its_door() -> None:
    meters = Meters()
    meters.first_audio("http", 0.2)
    meters.first_audio("grpc", 0.4)
    totals = {door.door: door.first_audio_s.total for door in meters.snapshot().doors}
    assert totals == {"http": 0.2, "grpc": 0.4}


def test_a_late_piece_is_an_underrun_and_one_in_time_is_not() -> None:
    meters = Meters()
    meters.piece(0.5, -0.3)
    meters.piece(0.6, 0.0)
    meters.piece(2.0, 0.7)
    snapshot = meters.snapshot()
    assert (snapshot.gap_s.count, snapshot.underruns) == (3, 1)
    assert snapshot.gap_s.total == pytest.approx(3.1)
    assert snapshot.late_s.maximum == 0.7


def test_characters_add_up() -> None:
    meters = Meters()
    meters.characters(10)
    meters.characters(5)
    assert meters.snapshot().characters == 15


def test_a_snapshot_stays_as_it_was() -> None:
    meters = Meters()
    meters.accepted("http")
    before = meters.snapshot()
    meters.ended("http", FinishReason.STOP, 1.0, 1.0)
    meters.refused("http", "overloaded")
    assert before.active == 1
    assert before.doors[0].refused == {}
    with pytest.raises(TypeError):
        before.doors[0].refused["overloaded"] = 1  # type: ignore[index]
