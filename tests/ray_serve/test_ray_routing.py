"""What Ray's router and its autoscaling make of what the engines say; no cluster is started."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'vivavoce[ray]'")

from vivavoce_ray.routing import FULL, HeadroomRouter, replicas_wanted


def replica(name: str, **told: Any) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), routing_stats=told)


def ranked(replicas: list[Any], key: bytes | None = None, avoid: tuple[str, ...] = (), **calls: int) -> list[list[str]]:
    """The names of each rank; calls: that this router knows of."""

    class Router(HeadroomRouter):
        replica_queue_len_cache = SimpleNamespace(get=lambda replica_id: calls.get(replica_id.unique_id))

    context = SimpleNamespace(should_backoff=False)
    request = SimpleNamespace(
        args=[key, frozenset(avoid), "request"],
        metadata=SimpleNamespace(call_method="speak"),
        routing_context=context,
    )
    router = Router.__new__(Router)
    ranks = asyncio.run(router.choose_replicas(replicas, request))
    assert context.should_backoff, "else it would ask again without a pause"
    return [[one.replica_id.unique_id for one in rank] for rank in ranks]


def test_the_one_with_the_most_headroom_is_first() -> None:
    three = [replica(name, ready=True, streams=5, capacity=20) for name in "abc"]
    assert ranked(three, a=9, b=2) == [["b"], ["c"], ["a"]], "what was sent since is counted, else what was told"
    assert ranked(three, avoid=("b",), a=9, b=2) == [["c"], ["a"]]
    large = replica("d", ready=True, streams=9, capacity=100)
    assert ranked([*three, large])[0] == ["d"]


def test_a_voice_has_its_own_until_that_is_full() -> None:
    three = [replica(name, ready=True, capacity=20) for name in "abc"]
    (first, *_) = [rank[0] for rank in ranked(three, b"voice")]
    others = {name: 2 for name in "abc" if name != first}
    assert ranked(three, b"voice", **others, **{first: 2})[0] == [first]
    assert ranked(three, b"voice", **others, **{first: 15})[-1] == [first]


def test_who_is_not_ready_is_asked_only_if_nobody_is() -> None:
    ready, away = replica("a", ready=True, capacity=2, streams=1), replica("b", ready=False, capacity=20)
    assert ranked([away, ready]) == [["a"]]
    assert ranked([away]) == [["b"]]
    assert ranked([ready], avoid=("a",)) == [["a"]], "a call that finds none would wait for ever"
    assert ranked([replica("new")]) == [["new"]], "one that has told nothing yet"


def test_engines_are_as_many_as_their_streams_need() -> None:
    def wanted(*streams: float) -> int:
        metrics = {"streams": dict(enumerate(streams)), "capacity": dict.fromkeys(range(len(streams)), 10.0)}
        context = SimpleNamespace(aggregated_metrics=metrics, current_num_replicas=len(streams), target_num_replicas=9)
        return replicas_wanted(context)[0]

    assert wanted(10 * FULL) == 1
    assert wanted(10 * FULL + 0.1) == 2
    assert wanted(10.0, 10.0, 10.0) == 5
    assert wanted(1.0, 1.0, 1.0) == 1
    nothing = SimpleNamespace(aggregated_metrics=None, current_num_replicas=2, target_num_replicas=3)
    assert replicas_wanted(nothing)[0] == 3
