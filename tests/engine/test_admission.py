"""Admission on machines whose costs are planted."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.engine.admission import (
    FEW_STREAMS,
    FEW_WAITING,
    FIRST_CHUNK_SLACK,
    MAX_RETRY_S,
    MIN_RETRY_S,
    AdmissionController,
    AdmissionLimits,
    AdmissionMode,
    Load,
)
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import BatchSize, Coefficients, CostModel, Stage
from vivavoce.engine.request_state import Phase, RequestState, SequenceState
from vivavoce.errors import InvalidRequest, Overloaded
from vivavoce.rates import Rates

RATES = Rates(24_000, 480, 25)
LIMITS = AdmissionLimits(AdmissionMode.REFUSE, max_waiting=8, first_chunk_s=0.5)
QUEUE = replace(LIMITS, admission=AdmissionMode.QUEUE)
IDLE = Load(streams=0, starting=0, offline=0, waiting=0, slots_free=64, slots_total=64)


def costs(slowness=1.0, per_row=1e-3, flow=0.1, prefill=0.01):
    """Of a planted machine: `slowness` scales them all."""
    terms = {
        Stage.PREFILL: (prefill, 0.0, 0.0, 0.0),
        Stage.DECODE: (5e-3, per_row / 10, 0.0, 1e-8),
        Stage.FLOW: (flow, per_row, 1e-4, 1e-9),
        Stage.VOCODER: (0.01, 0.0, 1e-5, 0.0),
    }
    return CostModel({stage: Coefficients(*(slowness * term for term in known)) for stage, known in terms.items()})


def controller(limits=LIMITS, rates=RATES, slots=64, policy=ChunkPolicy.low_latency(), **machine):
    return AdmissionController(costs(**machine), limits, rates, slots, policy)


MACHINES = st.fixed_dictionaries(
    {
        "slowness": st.floats(0.01, 30.0),
        "per_row": st.floats(0.0, 0.05),
        "flow": st.floats(1e-3, 0.5),
        "prefill": st.floats(1e-3, 0.3),
        "rates": st.sampled_from([RATES, Rates(24_000, 480, 50)]),
        "limits": st.builds(
            AdmissionLimits,
            admission=st.sampled_from(AdmissionMode),
            max_waiting=st.integers(1, 10),
            first_chunk_s=st.floats(0.05, 5.0),
            headroom=st.floats(0.1, 1.0),
        ),
    }
)


@st.composite
def loads(draw):
    streams, total = draw(st.integers(0, 80)), 128
    starting, offline, waiting = draw(st.integers(0, streams)), draw(st.integers(0, 50)), draw(st.integers(0, 12))
    return Load(streams, starting, offline, waiting, draw(st.integers(0, total)), total)


@st.composite
def growing_loads(draw):
    """A load, and one that is no smaller in any respect."""
    small, some = draw(loads()), st.integers(0, 10)
    starting = draw(some)
    return small, Load(
        streams=small.streams + starting + draw(some),
        starting=small.starting + starting,
        offline=small.offline + draw(some),
        waiting=small.waiting + draw(some),
        slots_free=draw(st.integers(0, small.slots_free)),
        slots_total=small.slots_total,
    )


def running(streams, starting=0, waiting=0, slots_free=64):
    return Load(streams, starting, 0, waiting, slots_free, 64)


def taken(ours, load, streaming=True):
    return ours.refusal(load, streaming) is None


def may_start(ours, load):
    return ours.admission_blocker(load) is None


def refused(ours, load, streaming=True):
    error = ours.refusal(load, streaming)
    assert error is not None
    return error


def capacity(ours):
    """Streams that are taken one after the other, each starting alone."""
    return next(n for n in range(1000) if not taken(ours, running(n)))


@pytest.mark.parametrize(("streams", "batches"), [(4, [4]), (67, [32, 32, 3])], ids=["one batch", "several batches"])
def test_the_share_is_the_sum_of_steps_prefills_and_chunks(streams, batches):
    predict = costs(flow=0.5).predict
    steps = 25 * predict(Stage.DECODE, BatchSize(streams, 0, streams * (185 + 125)))
    prefills = streams / 10 * predict(Stage.PREFILL, BatchSize(1, 185))
    flow = sum(predict(Stage.FLOW, BatchSize(rows, rows * 100, rows * 500)) for rows in batches)
    vocoder = sum(predict(Stage.VOCODER, BatchSize(rows, rows * 100)) for rows in batches)
    share = controller(flow=0.5).share_of_real_time(streams)
    assert share == pytest.approx(steps + prefills + 25 / 50 * (flow + vocoder))


def test_an_overlapping_chunk_costs_its_prompt_and_what_it_computes_again():
    """CosyVoice 1: 100 tokens of sound cost 206 frames of 120 tokens and those of 5 s of prompt, and wait for 120."""
    ours = controller(rates=Rates(22_050, 256, 50), policy=ChunkPolicy.overlapping(), per_row=0.0)
    chunk_s = 0.1 + 0.01 + (206 + 430) * 1.1e-4 + 1e-9 * (206 + 430) ** 2
    step_s = 5e-3 + 1e-8 * (60 + 250 + 250)
    assert ours.first_chunk_s(1, 1) == pytest.approx(0.01 + 120 * step_s + chunk_s)
    assert ours.share_of_real_time(1) == pytest.approx(0.01 / 10 + 50 * (step_s + chunk_s / 100))


def test_no_stream_needs_no_time():
    assert controller().share_of_real_time(0) == controller().first_chunk_s(5, 0) == 0.0


def test_the_first_chunk_waits_for_every_prefill():
    ours = controller(prefill=0.2)
    assert ours.first_chunk_s(3, 3) - ours.first_chunk_s(3, 1) == pytest.approx(0.4, rel=0.1)


def test_streams_are_taken_up_to_the_headroom():
    ours = controller()
    count = capacity(ours)
    assert count > 8
    assert ours.share_of_real_time(count) <= LIMITS.headroom < ours.share_of_real_time(count + 1)
    assert capacity(controller(replace(LIMITS, headroom=0.4))) < count
    error = refused(ours, running(count))
    assert re.fullmatch(rf"streams: {count + 1} would use \d+% of real time, headroom is 85%", error.figures)
    assert re.fullmatch(r"server: it is busy with other requests; try again in \d+ s", str(error))


def test_a_burst_is_refused_once_it_would_delay_its_own_first_chunks():
    ours = controller(slowness=0.1, prefill=1.0)  # 0.1 s per prefill, nearly nothing else
    most = next(n for n in range(30) if not taken(ours, running(n, starting=n)))
    assert ours.first_chunk_s(most, most) <= FIRST_CHUNK_SLACK * LIMITS.first_chunk_s
    assert "first chunk: it would come after" in refused(ours, running(most, starting=most)).figures
    assert taken(ours, running(most, starting=0)), "those that sound delay no other"


def test_a_machine_that_cannot_reach_the_target_is_measured_by_what_it_can():
    ours = controller(replace(LIMITS, first_chunk_s=1e-3))
    assert ours.first_chunk_s(1, 1) > FIRST_CHUNK_SLACK * 1e-3
    assert taken(ours, running(1))


def test_on_a_slow_machine_the_first_stream_is_served_and_the_second_refused():
    laptop = controller(slowness=100.0)
    assert laptop.share_of_real_time(1) > 1.0
    assert taken(laptop, IDLE)
    assert not taken(laptop, running(1))
    assert taken(laptop, replace(IDLE, offline=5, waiting=8)), "offline work gives way"


def test_without_a_free_slot_a_stream_is_refused_and_told_when_one_may_end():
    error = refused(controller(), replace(IDLE, offline=3, slots_free=0))
    assert (error.figures, str(error).partition("; ")[2]) == ("slots: all 64 are taken", "try again in 2 s")
    assert error.retry_after_s == pytest.approx(10 / 4)
    assert refused(controller(), running(9, slots_free=0)).retry_after_s == 1.0
    lagging = controller(slowness=20.0)
    share = lagging.share_of_real_time(2)
    assert share > 2
    assert refused(lagging, running(1)).retry_after_s == pytest.approx(10 / 2 * share)


def test_in_queue_mode_streams_wait_until_the_queue_is_full():
    ours = controller(QUEUE)
    busy = capacity(controller())
    assert [taken(ours, running(busy, waiting=n)) for n in (0, 7, 8)] == [True, True, False]
    assert not may_start(ours, running(busy))
    assert may_start(ours, running(busy - 1))
    assert refused(ours, running(busy, waiting=8)).figures == "queue: 8 requests wait, the limit is 8"
    full = replace(IDLE, waiting=8)
    assert may_start(ours, full)
    assert not taken(ours, full), "it is not passed though there is room"
    assert not taken(controller(), full, streaming=False)


@pytest.mark.parametrize("limits", [LIMITS, QUEUE])
def test_offline_work_is_refused_only_when_the_queue_is_full(limits):
    full = running(60, starting=60, slots_free=0)
    assert taken(controller(limits), replace(full, waiting=7), streaming=False)
    assert "the limit is 8" in refused(controller(limits), replace(full, waiting=8), streaming=False).figures


def test_all_takes_what_there_are_slots_for():
    ours = controller(replace(LIMITS, admission=AdmissionMode.ALL), slowness=100.0)
    load = Load(streams=20, starting=20, offline=0, waiting=0, slots_free=1, slots_total=21)
    assert may_start(ours, load)
    assert not may_start(controller(slowness=100.0), load)
    assert not may_start(ours, replace(load, slots_free=0))


AUTO = replace(LIMITS, admission=AdmissionMode.AUTO, max_waiting=1_000)


def test_by_itself_a_slow_machine_has_a_few_streams_wait_and_a_fast_one_none():
    laptop, fast = controller(AUTO, slowness=100.0), controller(AUTO)
    assert not may_start(laptop, running(1))
    assert [taken(laptop, running(1, waiting=n)) for n in (0, FEW_WAITING - 1, FEW_WAITING)] == [True, True, False]
    busy = capacity(controller())
    assert capacity(fast) == busy > FEW_STREAMS
    assert str(refused(fast, running(busy))) == str(refused(controller(), running(busy)))
    assert not taken(controller(slowness=100.0), running(1)), "where it is to refuse, it does"


@settings(max_examples=300, deadline=None)
@given(MACHINES, growing_loads(), st.booleans())
def test_more_load_never_turns_a_refusal_into_acceptance(machine, pair, streaming):
    (small, large), ours = pair, controller(**machine)
    assert taken(ours, small, streaming) >= taken(ours, large, streaming)
    assert may_start(ours, small) >= may_start(ours, large)
    fewer, more = ours.share_of_real_time(small.streams), ours.share_of_real_time(large.streams)
    assert fewer <= more * (1 + 1e-9)


@settings(max_examples=300, deadline=None)
@given(MACHINES, loads(), st.floats(1.01, 10.0))
def test_a_faster_machine_never_accepts_less(machine, load, factor):
    fast = {**machine, "slowness": machine["slowness"] / factor}
    assert may_start(controller(**machine), load) <= may_start(controller(**fast), load)
    if machine["limits"].admission is not AdmissionMode.AUTO:  # where a slow machine has them wait
        assert taken(controller(**machine), load) <= taken(controller(**fast), load)


@settings(max_examples=100, deadline=None)
@given(MACHINES, loads(), st.booleans())
def test_an_idle_engine_takes_anything_and_refusals_are_one_line_and_bring_a_time(machine, load, streaming):
    ours = controller(**machine)
    assert taken(ours, IDLE, streaming)
    error = ours.refusal(load, streaming)
    if error is not None:
        assert MIN_RETRY_S <= error.retry_after_s <= MAX_RETRY_S
        assert re.fullmatch(r"[^\n]+; try again in \d+ s", str(error))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("admission", ["refuse"]),
        ("max_waiting", [-1, 0]),
        ("headroom", [0.0, 1.1, float("nan")]),
        ("first_chunk_s", [0.0, float("nan")]),
        ("max_wait_s", [0.0, float("nan")]),
    ],
)
def test_limits_out_of_range_are_refused(field, values):
    for value in values:
        with pytest.raises(InvalidRequest, match=field):
            replace(LIMITS, **{field: value})


FAST = {"limits": replace(QUEUE, max_waiting=3, first_chunk_s=1.0), "slots": 2, "slowness": 1e-4}


def request(streaming=True, asked=True, sequences=1):
    made = RequestState(0, ChunkPolicy.low_latency() if streaming else None, 0.0, RATES, None, asked=asked)
    for _ in range(sequences):
        made.add(SequenceState(None))
    return made


def counts(of):
    load = of.load()
    return load.waiting, load.streams, load.starting, load.offline, load.slots_free


def test_the_course_of_a_stream():
    ours, one = controller(**FAST), request()
    ours.check(True)
    assert counts(ours) == (0, 0, 0, 0, 2)
    ours.check(True, one)
    assert counts(ours) == (1, 0, 0, 0, 2)
    assert ours.may_start(one, 0.0)
    assert counts(ours) == (0, 1, 1, 0, 1)
    one.hand_out(1.0, 0.0)
    assert counts(ours) == (0, 1, 0, 0, 1)
    ours.ended(one)
    ours.ended(one)
    assert counts(ours) == (0, 0, 0, 0, 2)


def test_offline_work_takes_no_slot_from_streams_and_no_more_of_it_starts_than_there_are_slots():
    ours, work, more, stream = controller(**FAST), request(False, sequences=2), request(False), request()
    for one in (work, more, stream):
        ours.check(one.policy is not None, one)
    assert ours.may_start(work, 0.0)
    assert counts(ours) == (2, 0, 0, 2, 2)
    assert not ours.may_start(more, 0.0)
    assert ours.may_start(stream, 0.0)
    work.sequences[0].phase, work.sequences[0].finished = Phase.DECODED, True
    assert ours.may_start(more, 0.0)


def test_a_stream_that_may_not_start_stays_where_it_is_and_measurements_may():
    ours = controller(**{**FAST, "slowness": 100.0})
    first, second, measuring = request(), request(), request(asked=False)
    for one in (first, second, measuring):
        ours.check(True, one)
    assert ours.may_start(first, 0.0)
    assert not ours.may_start(second, 0.0)
    assert ours.may_start(measuring, 0.0)
    assert counts(ours)[0] == 1


SLOW = {"limits": AUTO, "slowness": 3.5}


def starts(ours, now=0.0):
    """Whether one more stream may begin then."""
    one = request()
    ours.check(True, one)
    may = ours.may_start(one, now)
    ours.ended(one)
    return may


def test_on_a_slow_machine_a_stream_begins_when_the_listeners_have_enough_in_hand():
    ours, first = controller(**SLOW), request()
    assert FEW_STREAMS > ours.capacity() > 2
    ours.check(True, first)
    assert ours.may_start(first, 0.0)
    assert not starts(ours), "nothing is heard of the first one yet"
    first.hand_out(1.0, 0.0)
    assert not starts(ours), "the other's first chunks take longer than that"
    first.hand_out(9.0, 0.0)
    assert [starts(ours, now) for now in (0.0, 1.0, 9.0)] == [True, True, False]
    second = request()
    ours.check(True, second)
    assert ours.may_start(second, 0.0)
    assert not starts(ours), "one begins after the other"
    fast = controller(AUTO)
    for _ in range(2):
        one = request()
        fast.check(True, one)
        assert fast.may_start(one, 0.0), "others lose too little time there"


def test_a_short_text_needs_less_in_hand_than_a_long_one():
    ours, first = controller(**SLOW), request()
    ours.check(True, first)
    assert ours.may_start(first, 0.0)
    first.hand_out(3.0, 0.0)

    def may_start_with(tokens, complete=True):
        one = request(sequences=0)
        one.complete = complete
        one.arrived.append(SequenceState(None, most_tokens=tokens))
        ours.check(True, one)
        may = ours.may_start(one, 0.0)
        ours.ended(one)
        return may

    assert may_start_with(20)
    assert not may_start_with(200)
    assert not may_start_with(20, complete=False), "more may come"


def test_who_waits_for_more_text_holds_up_no_stream_on_a_slow_machine():
    ours, first = controller(**SLOW), request()
    first.complete, (sequence,) = False, first.sequences
    ours.check(True, first)
    assert ours.may_start(first, 0.0)
    first.hand_out(1.0, 0.0)
    assert not starts(ours)
    sequence.phase = Phase.STARVED
    sequence.produced = 5
    assert starts(ours), "too little has come for a chunk"
    sequence.busy = True
    assert not starts(ours)


def test_where_streams_are_refused_those_that_the_loop_has_not_seen_count_as_running():
    ours = controller(slots=1)
    ours.check(True, request())
    with pytest.raises(Overloaded, match="busy"):
        ours.check(True, request())
    assert counts(ours)[0] == 1
    ours.check(False)


def test_the_place_of_who_has_left_is_free_before_the_loop_has_seen_it():
    ours, first = controller(slots=1), request()
    ours.check(True, first)
    assert ours.may_start(first, 0.0)
    first.id = 7
    ours.left(8)
    assert counts(ours)[-1] == 0
    ours.left(7)
    ours.check(True, request())
    ours.ended(first)
    assert counts(ours)[0] == 1
