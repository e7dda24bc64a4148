"""Admission on machines whose costs are planted."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.engine.admission import (
    FIRST_CHUNK_SLACK,
    MAX_RETRY_S,
    MIN_RETRY_S,
    AdmissionMode,
    Limits,
    Load,
    StreamShape,
    admit,
    admit_offline,
    first_chunk_s,
    may_start,
    share_of_real_time,
)
from vivavoce.engine.cost_model import Coefficients, CostModel, Priors, Stage, Work
from vivavoce.errors import InvalidRequest, Overloaded

SHAPE = StreamShape(
    tokens_per_second=25,
    frames_per_token=2,
    first_hop=28,
    hop=50,
    past_frames=300,
    prompt_rows=150,
    exclusive=False,
    max_rows=16,
)
LIMITS = Limits(AdmissionMode.REFUSE, max_waiting=8, first_chunk_s=0.5)
QUEUE = replace(LIMITS, mode=AdmissionMode.QUEUE)
IDLE = Load(streams=0, starting=0, offline=0, waiting=0, slots_free=64, slots_total=64)


def machine(slowness: float = 1.0, per_row: float = 1e-3, flow: float = 0.1, prefill: float = 0.01) -> CostModel:
    """Costs of a planted machine: `slowness` scales them all."""
    return CostModel(
        Priors(
            prefill=Coefficients(slowness * prefill, 0.0, 0.0, 0.0),
            decode=Coefficients(slowness * 5e-3, slowness * per_row / 10, 0.0, slowness * 1e-8),
            flow=Coefficients(slowness * flow, slowness * per_row, slowness * 1e-4, slowness * 1e-9),
            vocoder=Coefficients(slowness * 0.01, 0.0, slowness * 1e-5, 0.0),
        )
    )


MACHINES = st.fixed_dictionaries(
    {
        "slowness": st.floats(0.01, 30.0),
        "per_row": st.floats(0.0, 0.05),
        "flow": st.floats(1e-3, 0.5),
        "prefill": st.floats(1e-3, 0.3),
    }
)
SHAPES = st.builds(
    StreamShape,
    tokens_per_second=st.sampled_from([25, 50]),
    frames_per_token=st.just(2),
    first_hop=st.integers(8, 60),
    hop=st.integers(25, 100),
    past_frames=st.integers(0, 1000),
    prompt_rows=st.integers(1, 300),
    exclusive=st.booleans(),
    duration_s=st.floats(1.0, 60.0),
    max_rows=st.integers(1, 64),
)
ALL_LIMITS = st.builds(
    Limits,
    mode=st.sampled_from(AdmissionMode),
    max_waiting=st.integers(0, 10),
    first_chunk_s=st.floats(0.05, 5.0),
    headroom=st.floats(0.1, 1.0),
)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    streams = draw(st.integers(0, 80))
    starting = draw(st.integers(0, streams))
    total = 128
    return Load(
        streams, starting, draw(st.integers(0, 50)), draw(st.integers(0, 12)), draw(st.integers(0, total)), total
    )


@st.composite
def growing_loads(draw: st.DrawFn) -> tuple[Load, Load]:
    """A load, and one that is no smaller in any respect."""
    small = draw(loads())
    starting, sounding = draw(st.integers(0, 10)), draw(st.integers(0, 10))
    return small, Load(
        streams=small.streams + starting + sounding,
        starting=small.starting + starting,
        offline=small.offline + draw(st.integers(0, 10)),
        waiting=small.waiting + draw(st.integers(0, 10)),
        slots_free=draw(st.integers(0, small.slots_free)),
        slots_total=small.slots_total,
    )


def running(streams: int, starting: int = 0, waiting: int = 0, slots_free: int = 64) -> Load:
    return Load(streams, starting, 0, waiting, slots_free, 64)


def capacity(costs: CostModel, limits: Limits = LIMITS, shape: StreamShape = SHAPE) -> int:
    """Streams that are taken one after the other, each starting alone."""
    return next(n for n in range(1000) if not admit(costs, running(n), shape, limits).accepted)


def test_the_share_is_the_busier_side_where_stages_overlap_and_the_sum_where_they_do_not() -> None:
    costs = machine()
    steps = 25 * costs.predict(Stage.DECODE, Work.batch(4, 0, 150 + 125))
    prefills = 4 / 10 * costs.predict(Stage.PREFILL, Work.batch(1, 150))
    flow = costs.predict(Stage.FLOW, Work.batch(4, 100, 300)) + costs.predict(Stage.VOCODER, Work.batch(4, 100))
    chunks = 25 / 50 * flow
    assert share_of_real_time(costs, 4, SHAPE) == pytest.approx(max(steps + prefills, chunks))
    alone = replace(SHAPE, exclusive=True)
    assert share_of_real_time(costs, 4, alone) == pytest.approx(steps + prefills + chunks)


def test_more_chunks_than_the_flow_takes_at_once_go_in_several_batches() -> None:
    costs = machine(flow=0.5)
    batches = [Work.batch(rows, 100, 300) for rows in (16, 16, 3)]
    frames = [Work.batch(rows, 100) for rows in (16, 16, 3)]
    chunks = sum(costs.predict(Stage.FLOW, work) for work in batches)
    chunks += sum(costs.predict(Stage.VOCODER, work) for work in frames)
    assert share_of_real_time(costs, 35, SHAPE) == pytest.approx(25 / 50 * chunks)


def test_no_stream_needs_no_time() -> None:
    assert share_of_real_time(machine(), 0, SHAPE) == 0.0
    assert first_chunk_s(machine(), 5, 0, SHAPE) == 0.0


def test_the_first_chunk_waits_for_every_prefill() -> None:
    costs = machine(prefill=0.2)
    one, three = first_chunk_s(costs, 3, 1, SHAPE), first_chunk_s(costs, 3, 3, SHAPE)
    assert three - one == pytest.approx(0.4, rel=0.1)


def test_streams_are_taken_up_to_the_headroom() -> None:
    costs = machine()
    count = capacity(costs)
    assert count > 8
    assert share_of_real_time(costs, count, SHAPE) <= LIMITS.headroom < share_of_real_time(costs, count + 1, SHAPE)
    verdict = admit(costs, running(count), SHAPE, LIMITS)
    assert re.fullmatch(
        rf"streams: {count + 1} would use \d+% of real time, headroom is 85%; try again in \d+ s", verdict.reason
    )


def test_less_headroom_takes_fewer() -> None:
    assert capacity(machine(), replace(LIMITS, headroom=0.4)) < capacity(machine())


def test_a_burst_is_refused_once_it_would_delay_its_own_first_chunks() -> None:
    costs = machine(slowness=0.1, prefill=1.0)  # 0.1 s per prefill, nearly nothing else
    verdicts = [admit(costs, running(n, starting=n), SHAPE, LIMITS) for n in range(30)]
    taken = [verdict.accepted for verdict in verdicts].index(False)
    assert first_chunk_s(costs, taken, taken, SHAPE) <= FIRST_CHUNK_SLACK * LIMITS.first_chunk_s
    assert "first chunk: it would come after" in verdicts[taken].reason
    assert admit(costs, running(taken, starting=0), SHAPE, LIMITS).accepted, "those that sound delay nobody"


def test_a_machine_that_cannot_reach_the_target_is_measured_by_what_it_can() -> None:
    hurried = replace(LIMITS, first_chunk_s=1e-3)
    assert first_chunk_s(machine(), 1, 1, SHAPE) > FIRST_CHUNK_SLACK * hurried.first_chunk_s
    assert admit(machine(), running(1), SHAPE, hurried).accepted


def test_on_a_slow_machine_the_first_stream_is_served_and_the_second_refused() -> None:
    laptop = machine(slowness=100.0)
    assert share_of_real_time(laptop, 1, SHAPE) > 1.0
    assert admit(laptop, IDLE, SHAPE, LIMITS).accepted
    assert not admit(laptop, running(1), SHAPE, LIMITS).accepted
    assert admit(laptop, replace(IDLE, offline=5, waiting=8), SHAPE, LIMITS).accepted, "offline work gives way"


def test_without_a_free_slot_a_stream_is_refused_and_told_when_one_may_end() -> None:
    verdict = admit(machine(), replace(IDLE, offline=3, slots_free=0), SHAPE, LIMITS)
    assert verdict.reason == "slots: all 64 are taken; try again in 2 s"
    assert verdict.retry_after_s == pytest.approx(10 / 4)
    assert not may_start(machine(), replace(IDLE, slots_free=0), SHAPE, LIMITS)


def test_in_queue_mode_streams_wait_until_the_queue_is_full() -> None:
    costs = machine()
    busy = capacity(costs)
    assert [admit(costs, running(busy, waiting=n), SHAPE, QUEUE).accepted for n in (0, 7, 8)] == [True, True, False]
    assert not may_start(costs, running(busy), SHAPE, QUEUE)
    assert may_start(costs, running(busy - 1), SHAPE, QUEUE)
    reason = admit(costs, running(busy, waiting=8), SHAPE, QUEUE).reason
    assert re.fullmatch(r"queue: 8 requests wait, max_waiting is 8; try again in \d+ s", reason)


def test_nobody_passes_a_full_queue_though_there_is_room() -> None:
    """Whoever waits is about to take the free slot."""
    assert may_start(machine(), replace(IDLE, waiting=8), SHAPE, QUEUE)
    assert not admit(machine(), replace(IDLE, waiting=8), SHAPE, QUEUE).accepted
    assert not admit_offline(replace(IDLE, waiting=8), LIMITS).accepted


def test_a_machine_that_lags_is_given_longer() -> None:
    verdict = admit(machine(slowness=20.0), running(1), SHAPE, LIMITS)
    share = share_of_real_time(machine(slowness=20.0), 2, SHAPE)
    assert share > 2
    assert verdict.retry_after_s == pytest.approx(10 / 2 * share)


def test_without_places_in_the_queue_only_what_may_start_is_taken() -> None:
    none_waits = replace(QUEUE, max_waiting=0)
    assert admit(machine(), IDLE, SHAPE, none_waits).accepted
    assert not admit(machine(), running(3, slots_free=0), SHAPE, none_waits).accepted
    assert admit_offline(IDLE, none_waits).accepted
    assert not admit_offline(replace(IDLE, slots_free=0), none_waits).accepted


@pytest.mark.parametrize("limits", [LIMITS, QUEUE])
def test_offline_work_is_refused_only_when_the_queue_is_full(limits: Limits) -> None:
    full = running(60, starting=60, slots_free=0)
    assert admit_offline(replace(full, waiting=7), limits).accepted
    verdict = admit_offline(replace(full, waiting=8), limits)
    assert not verdict.accepted
    assert "max_waiting is 8" in verdict.reason


def test_a_refusal_raises_overloaded_and_acceptance_nothing() -> None:
    admit(machine(), IDLE, SHAPE, LIMITS).raise_if_refused()
    with pytest.raises(Overloaded, match="slots: all 64 are taken") as caught:
        admit(machine(), running(9, slots_free=0), SHAPE, LIMITS).raise_if_refused()
    assert caught.value.retry_after_s == 1.0


@settings(max_examples=300, deadline=None)
@given(MACHINES, SHAPES, ALL_LIMITS, growing_loads())
def test_more_load_never_turns_a_refusal_into_acceptance(
    costs: dict[str, float], shape: StreamShape, limits: Limits, pair: tuple[Load, Load]
) -> None:
    small, large = pair
    model = machine(**costs)
    assert admit(model, small, shape, limits).accepted >= admit(model, large, shape, limits).accepted
    assert may_start(model, small, shape, limits) >= may_start(model, large, shape, limits)
    assert admit_offline(small, limits).accepted >= admit_offline(large, limits).accepted


@settings(max_examples=300, deadline=None)
@given(MACHINES, SHAPES, ALL_LIMITS, loads(), st.floats(1.01, 10.0))
def test_a_faster_machine_never_accepts_less(
    costs: dict[str, float], shape: StreamShape, limits: Limits, load: Load, factor: float
) -> None:
    slow, fast = machine(**costs), machine(**{**costs, "slowness": costs["slowness"] / factor})
    assert admit(slow, load, shape, limits).accepted <= admit(fast, load, shape, limits).accepted


@settings(max_examples=100, deadline=None)
@given(MACHINES, SHAPES, ALL_LIMITS)
def test_an_idle_engine_takes_anything(costs: dict[str, float], shape: StreamShape, limits: Limits) -> None:
    assert admit(machine(**costs), IDLE, shape, limits).accepted
    assert admit_offline(IDLE, limits).accepted


@settings(max_examples=100, deadline=None)
@given(MACHINES, SHAPES, ALL_LIMITS, loads())
def test_refusals_are_one_line_and_bring_a_time(
    costs: dict[str, float], shape: StreamShape, limits: Limits, load: Load
) -> None:
    for verdict in (admit(machine(**costs), load, shape, limits), admit_offline(load, limits)):
        if verdict.accepted:
            assert (verdict.reason, verdict.retry_after_s) == ("", 0.0)
        else:
            assert MIN_RETRY_S <= verdict.retry_after_s <= MAX_RETRY_S
            assert "\n" not in verdict.reason
            assert "try again in" in verdict.reason


@settings(max_examples=100, deadline=None)
@given(MACHINES, SHAPES, st.integers(0, 100))
def test_the_share_grows_with_the_streams(costs: dict[str, float], shape: StreamShape, streams: int) -> None:
    model = machine(**costs)
    fewer, more = share_of_real_time(model, streams, shape), share_of_real_time(model, streams + 1, shape)
    assert fewer <= more * (1 + 1e-9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "refuse"),
        ("max_waiting", -1),
        ("headroom", 0.0),
        ("headroom", 1.1),
        ("headroom", float("nan")),
        ("first_chunk_s", 0.0),
        ("first_chunk_s", float("nan")),
    ],
)
def test_limits_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=field):
        replace(LIMITS, **{field: value})


def test_all_takes_what_there_are_slots_for() -> None:
    limits = replace(LIMITS, mode=AdmissionMode.ALL)
    slow = machine(100.0)
    load = Load(streams=20, starting=20, offline=0, waiting=0, slots_free=1, slots_total=21)
    assert may_start(slow, load, SHAPE, limits)
    assert not may_start(slow, load, SHAPE, LIMITS)
    assert not may_start(slow, replace(load, slots_free=0), SHAPE, limits)
