"""What the scheduler decides, over plain numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.flow_batches import FlowItem
from vivavoce.engine.scheduler import Limits, Plan, RunningBatch, Scheduler, Situation
from vivavoce.engine.stream import Cut, Kind, Phase, Segment, Stream
from vivavoce.rates import Rates

RATES = Rates(sample_rate=24_000, samples_per_frame=480, tokens_per_second=25)
NOW = 100.0
AT = Situation(
    now=NOW,
    lm_open=True,
    synthesis_open=True,
    slots_free=8,
    slots_total=8,
    steps_in_flight=0,
    running=(),
    batches_open=True,
)


class Costs:
    """A machine on which a step takes 10 ms, and flow and vocoder 1 ms per frame."""

    def predict(self, stage, work):
        return {Stage.PREFILL: 0.02, Stage.DECODE: 0.01, Stage.FLOW: work.frames / 1000}.get(stage, work.frames / 5000)


class FlatCosts(Costs):
    """A machine on which a batch takes as long as one row."""

    def predict(self, stage, work):
        return 0.05 if stage is Stage.FLOW else super().predict(stage, work)


class DearCosts(Costs):
    """A machine on which any chunk takes a second."""

    def predict(self, stage, work):
        return 1.0 if stage is Stage.FLOW else 0.0


def scheduler(exclusive=True, **limits):
    return Scheduler(Costs(), Limits(**limits), exclusive=exclusive)


_numbers = iter(range(10_000))


def a_stream(phase=Phase.DECODING, produced=0, spoken=0, chunks=0, policy=ChunkPolicy.low_latency(), **fields):
    stream = Stream(next(_numbers), policy, fields.pop("accepted_at", NOW), RATES, **fields)
    segment = Segment(stream, 0, prompt_rows=100, prompt_tokens=50, phase=phase, produced=produced, spoken=spoken)
    segment.chunks = chunks
    stream.segments.append(segment)
    return stream


def sounding(ahead_s, **fields):
    """A stream whose listener will have played everything in `ahead_s` seconds."""
    return a_stream(sounding_since=NOW - 10.0, handed_out_s=10.0 + ahead_s, accepted_at=NOW - 11.0, **fields)


def offline(**fields):
    return a_stream(policy=None, **fields)


def segment_of(stream):
    return stream.segments[0]


def test_nothing_to_do():
    assert scheduler().plan([], AT) == Plan()
    assert scheduler().plan([a_stream(phase=Phase.STARVED)], AT) == Plan()


def test_a_waiting_stream_takes_a_slot_before_others_decode_on():
    new, old = a_stream(phase=Phase.WAITING), sounding(5.0)
    assert scheduler().plan([old, new], AT).prefill == (segment_of(new),)
    assert scheduler().plan([old, new], replace(AT, slots_free=0)).decode


def test_whoever_runs_dry_goes_before_a_newcomer():
    new, dry = a_stream(phase=Phase.WAITING), sounding(0.1)
    plan = scheduler().plan([new, dry], AT)
    assert plan.decode
    assert not plan.prefill


def test_offline_work_is_read_while_all_streams_are_far_ahead():
    work = offline(phase=Phase.WAITING)
    assert scheduler().plan([sounding(1.0), work], AT).decode
    assert scheduler().plan([sounding(5.0), work], AT).prefill == (segment_of(work),)


def test_a_prefill_is_bounded_in_rows_but_never_empty():
    waiting = [a_stream(phase=Phase.WAITING, accepted_at=NOW - place) for place in range(5)]
    assert len(scheduler(prefill_rows=250).plan(waiting, AT).prefill) == 2
    assert len(scheduler(prefill_rows=10).plan(waiting, AT).prefill) == 1


def test_the_oldest_newcomer_goes_first():
    young, old = a_stream(phase=Phase.WAITING), a_stream(phase=Phase.WAITING, accepted_at=NOW - 5)
    assert scheduler().plan([young, old], replace(AT, slots_free=1)).prefill == (segment_of(old),)


def test_offline_work_leaves_slots_to_streams():
    work = offline(phase=Phase.WAITING)
    assert scheduler().plan([work], AT).prefill == (segment_of(work),)
    assert scheduler(spare_slots=0.25).plan([work], replace(AT, slots_free=2)) == Plan()
    stream = a_stream(phase=Phase.WAITING)
    assert scheduler(spare_slots=0.25).plan([work, stream], replace(AT, slots_free=2)).prefill == (segment_of(stream),)


def test_a_row_that_waits_in_its_slot_needs_no_free_one():
    reading = a_stream(phase=Phase.READING)
    assert scheduler().plan([reading], replace(AT, slots_free=0)).prefill == (segment_of(reading),)


def test_a_first_chunk_is_made_as_soon_as_its_tokens_are_there():
    for produced, wanted in ((17, False), (18, True)):
        stream = a_stream(produced=produced)
        plan = scheduler().plan([stream], AT)
        assert bool(plan.start) is wanted
        assert bool(plan.decode) is not wanted
    assert plan.start == (FlowItem(segment_of(stream), Cut(15, False, Kind.CHUNK)),)


def test_the_prompt_comes_before_the_first_chunk():
    stream = a_stream(produced=40)
    segment_of(stream).lacks_prompt = True
    assert scheduler().plan([stream], AT).start == (FlowItem(segment_of(stream), None),)


def test_a_busy_segment_is_not_cut_again():
    stream = a_stream(produced=40, phase=Phase.DECODED)
    segment_of(stream).busy = True
    assert scheduler().plan([stream], AT) == Plan()


def test_the_stream_that_runs_dry_first_is_made_first():
    late, later = (sounding(ahead, produced=80, chunks=2, phase=Phase.DECODED) for ahead in (0.05, 3.0))
    plan = scheduler(batch_frames=1, urgent_batch_frames=1).plan([later, late], AT)
    assert [item.segment for item in plan.start] == [segment_of(late)]


def test_first_chunks_go_before_streams_that_are_ahead():
    first, ahead = a_stream(produced=18), sounding(3.0, produced=80, chunks=2)
    plan = scheduler().plan([ahead, first], AT)
    assert plan.start[0].segment is segment_of(first)


def test_what_can_wait_shares_a_batch():
    streams = [sounding(ahead, produced=28, chunks=2, phase=Phase.DECODED) for ahead in (3.0, 4.0, 5.0)]

    def batch(**limits):
        return Scheduler(FlatCosts(), Limits(**limits), exclusive=True).plan(streams, AT).start

    assert {item.segment for item in batch()} == {segment_of(one) for one in streams}
    assert len(batch(batch_frames=100)) == 2


def test_where_company_saves_nothing_nobody_waits_for_it():
    streams = [sounding(ahead, produced=28, chunks=2, phase=Phase.DECODED) for ahead in (0.05, 4.0)]
    assert [item.segment for item in scheduler().plan(streams, AT).start] == [segment_of(streams[0])]


def test_where_company_is_free_even_the_late_take_it():
    streams = [sounding(ahead, produced=28, chunks=2, phase=Phase.DECODED) for ahead in (0.05, 4.0)]
    assert len(Scheduler(FlatCosts(), Limits(), exclusive=True).plan(streams, AT).start) == 2


@pytest.mark.parametrize("policy", [None, ChunkPolicy.official()])
def test_kinds_do_not_mix(policy):
    other = a_stream(policy=policy, produced=80, phase=Phase.DECODED, accepted_at=NOW - 9)
    stream = sounding(5.0, produced=80, chunks=2, phase=Phase.DECODED)
    (item,) = scheduler().plan([stream, other], AT).start
    assert item.kind in (Kind.CHUNK, Kind.GRID)


def test_a_batch_that_runs_is_finished_first():
    one, other = (sounding(3.0, produced=80, chunks=2, phase=Phase.DECODED) for _ in range(2))
    segment_of(one).busy = True
    batch = RunningBatch(0, (FlowItem(segment_of(one), Cut(25, False, Kind.CHUNK)),), 0.1)
    plan = scheduler().plan([one, other], replace(AT, running=(batch,)))
    assert plan.advance is batch
    assert not plan.start


def test_a_first_chunk_overtakes_offline_work_that_runs():
    work, stream = offline(produced=500, phase=Phase.DECODED), a_stream(produced=18)
    segment_of(work).busy = True
    batch = RunningBatch(0, (FlowItem(segment_of(work), Cut(500, True, Kind.WHOLE)),), 2.0)
    assert scheduler().plan([work, stream], replace(AT, running=(batch,))).start[0].segment is segment_of(stream)
    assert scheduler().plan([work, stream], replace(AT, running=(batch,), batches_open=False)).advance is batch


def test_offline_work_fills_what_is_left_and_is_not_forgotten():
    stream = sounding(3.0, produced=80, chunks=2, phase=Phase.DECODED)
    young, old = (offline(produced=50, phase=Phase.DECODED, accepted_at=NOW - age) for age in (1, 90))
    assert scheduler().plan([young, stream], AT).start[0].segment is segment_of(stream)
    assert scheduler(patience_s=60).plan([old, stream], AT).start[0].segment is segment_of(old)


def test_lanes_of_their_own_both_work():
    streams = [a_stream(produced=18), a_stream(produced=3)]
    plan = scheduler(exclusive=False).plan(streams, AT)
    assert plan.decode
    assert plan.start
    assert not scheduler(exclusive=False).plan(streams, replace(AT, lm_open=False)).decode
    assert not scheduler(exclusive=False).plan(streams, replace(AT, synthesis_open=False)).start


@pytest.mark.parametrize(("decoding", "steps"), [(1, 1), (7, 1), (8, 2), (31, 2), (32, 4), (200, 4)])
def test_many_that_decode_share_launches_of_several_steps(decoding, steps):
    streams = [sounding(3.0, produced=20, chunks=2) for _ in range(decoding)]
    assert scheduler(exclusive=False).plan(streams, AT).decode == steps
    assert scheduler(exclusive=True).plan(streams, AT).decode == 1


@pytest.mark.parametrize(
    ("produced", "in_flight", "steps"), [(0, 0, 4), (15, 0, 3), (17, 0, 1), (15, 1, 2), (15, 3, 4)]
)
def test_a_first_chunk_waits_for_no_token_that_it_does_not_need(produced, in_flight, steps):
    """It needs 18; with 3 that are lacking and 3 on their way it waits for no step to come."""
    streams = [*(sounding(3.0, produced=20, chunks=2) for _ in range(40)), a_stream(produced=produced)]
    at = replace(AT, steps_in_flight=in_flight)
    assert scheduler(exclusive=False).plan(streams, at).decode == steps


def test_offline_work_is_decoded_many_steps_at_once():
    streams = [offline(produced=5) for _ in range(40)]
    assert scheduler(exclusive=False).plan(streams, AT).decode == 4


@pytest.mark.parametrize("exclusive", [True, False])
def test_whoever_runs_dry_overtakes_a_batch_that_can_wait(exclusive):
    ahead = sounding(3.0, produced=80, chunks=2, phase=Phase.DECODED)
    segment_of(ahead).busy = True
    batch = RunningBatch(0, (FlowItem(segment_of(ahead), Cut(25, False, Kind.CHUNK)),), 0.1)
    at = replace(AT, running=(batch,), lm_open=False)
    for slack_s, overtakes in ((0.1, True), (2.5, False)):
        other = sounding(slack_s, produced=80, chunks=2, phase=Phase.DECODED)
        plan = scheduler(exclusive=exclusive).plan([ahead, other], at)
        assert [item.segment for item in plan.start] == ([segment_of(other)] if overtakes else [])
        assert (plan.advance is batch) is not overtakes
        segment_of(other).busy = True
        assert scheduler(exclusive=exclusive).plan([ahead, other], at).advance is batch


def test_a_chunk_s_own_work_counts_before_its_listener_runs_dry():
    """Priced at a second: what is two seconds ahead can wait, what is one second ahead cannot."""
    batch = RunningBatch(0, (FlowItem(segment_of(sounding(9.0)), Cut(25, False, Kind.CHUNK)),), 0.1)
    at = replace(AT, running=(batch,), lm_open=False)
    for ahead_s, overtakes in ((1.0, True), (2.0, False)):
        stream = sounding(ahead_s, produced=500, chunks=8, phase=Phase.DECODED)
        plan = Scheduler(DearCosts(), Limits(), exclusive=False).plan([stream], at)
        assert bool(plan.start) is overtakes


def test_a_stream_overtakes_offline_work_in_a_lane_of_its_own():
    work, stream = offline(produced=500, phase=Phase.DECODED), sounding(9.0, produced=80, phase=Phase.DECODED)
    segment_of(work).busy = True
    batch = RunningBatch(0, (FlowItem(segment_of(work), Cut(500, True, Kind.WHOLE)),), 2.0)
    at = replace(AT, running=(batch,))
    assert scheduler(exclusive=False).plan([work, stream], at).start[0].segment is segment_of(stream)
    other = offline(produced=50, phase=Phase.DECODED)
    assert scheduler(exclusive=False).plan([work, other], at).advance is batch


def test_a_closed_stream_gets_nothing():
    assert scheduler().plan([a_stream(produced=18, closed=True)], AT) == Plan()


def test_the_next_segment_is_decoded_while_the_last_one_is_heard():
    stream = sounding(3.0, produced=40, phase=Phase.DECODED)
    segment_of(stream).busy = True
    following = Segment(stream, 1, prompt_rows=100, prompt_tokens=50)
    stream.segments.append(following)
    assert scheduler().plan([stream], AT).prefill == (following,)
    following.phase, following.produced = Phase.DECODED, 60
    assert scheduler().plan([stream], AT) == Plan()  # its audio is not made before its turn
    stream.current = 1
    assert scheduler().plan([stream], AT).start[0].segment is following


def batch_of(stream):
    return RunningBatch(0, (FlowItem(segment_of(stream), Cut(15, final=False, kind=Kind.CHUNK)),), 0.05)


def test_decode_steps_that_nobody_waits_for_give_way_to_an_urgent_batch():
    silent = a_stream(produced=18)
    segment_of(silent).busy = True
    at = replace(AT, running=(batch_of(silent),), synthesis_open=False)
    two_lanes = scheduler(exclusive=False)
    assert two_lanes.plan([silent], at) == Plan()
    assert two_lanes.plan([silent, sounding(5.0)], at) == Plan()
    assert two_lanes.plan([silent, a_stream(produced=3)], at).decode  # a first chunk lacks tokens
    assert two_lanes.plan([silent, sounding(0.1)], at).decode  # its listener would run dry
    assert two_lanes.plan([silent, offline(accepted_at=NOW - 61.0)], at).decode  # it has waited for too long
    following = sounding(0.1, phase=Phase.DECODED, produced=30, spoken=30)
    following.segments.append(Segment(following, 1, prompt_rows=100, prompt_tokens=50, phase=Phase.DECODING))
    assert two_lanes.plan([silent, following], at).decode  # the next sentence begins before the listener runs dry
    segment_of(following).spoken = 0
    assert two_lanes.plan([silent, following], at) == Plan()  # more of this one is still to be heard
    silent.closed = True
    assert two_lanes.plan([silent, sounding(5.0)], at).decode  # nobody waits for the batch any more
    silent.closed = False
    calm = replace(at, running=(batch_of(sounding(5.0, produced=100)),))
    assert two_lanes.plan([silent], calm).decode


def test_steps_that_many_share_wait_for_the_flow_until_first_tokens_have_waited():
    crowd = [sounding(9.0) for _ in range(10)]
    new = a_stream(produced=1, accepted_at=NOW - 5)
    segment_of(new).read_at = NOW - 0.015
    at = replace(AT, running=(batch_of(sounding(9.0, produced=100)),), synthesis_open=False)
    two_lanes = scheduler(exclusive=False)
    assert two_lanes.plan(crowd, at) == Plan()
    assert two_lanes.plan([*crowd, new], at) == Plan()
    segment_of(new).read_at = NOW - 0.025  # 2 ms for each of eleven
    assert two_lanes.plan([*crowd, new], at).decode
    many = [sounding(9.0) for _ in range(100)]
    assert two_lanes.plan([*many, new], at) == Plan()
    segment_of(new).read_at = NOW - 0.105
    assert two_lanes.plan([*many, new], at).decode
    assert two_lanes.plan([*crowd, sounding(0.1)], at).decode  # its listener would run dry
    assert two_lanes.plan([*crowd[:5], new], at).decode  # of few each step costs the same
    assert two_lanes.plan(crowd, replace(at, running=())).decode
    waiting, old = offline(phase=Phase.WAITING), offline(produced=100, accepted_at=NOW - 61.0)
    assert two_lanes.plan([*crowd, waiting], at).prefill == (segment_of(waiting),)  # nobody is kept from tokens by it
    assert two_lanes.plan([*crowd, old], at) == Plan()  # it gets its tokens with theirs
    assert two_lanes.plan(crowd, replace(at, running=(batch_of(old),))).decode


def test_where_batches_are_short_streams_are_about_to_run_dry_later():
    stream, first = sounding(0.3, produced=60, spoken=30, chunks=2), a_stream(produced=30)
    slow = Scheduler(FlatCosts(), Limits(guard_s=0.4), exclusive=False)
    assert slow.urgency(segment_of(stream), NOW, 0.0).rank == 0
    slow.plan([], AT)
    assert slow.urgency(segment_of(stream), NOW, 0.0).rank == 2
    assert slow.plan([stream, first], AT).start[0].segment is segment_of(first)


def test_batches_of_offline_work_alone_are_larger_where_nothing_is_padded():
    waiting = [offline(phase=Phase.DECODED, produced=30) for _ in range(4)]
    limits = Limits(batch_frames=400, offline_batch_frames=650)
    assert len(Scheduler(FlatCosts(), limits, exclusive=False).plan(waiting, AT).start) == 2
    assert len(Scheduler(FlatCosts(), limits, exclusive=False, padded=False).plan(waiting, AT).start) == 4


def test_limits_within_what_memory_allows():
    assert Limits().within(16_384) == Limits()
    assert Limits().within(None) == Limits()
    small = Limits().within(2_048)
    assert (small.batch_frames, small.urgent_batch_frames, small.offline_batch_frames) == (2_048,) * 3
    assert Limits(urgent_batch_frames=100).within(2_048).urgent_batch_frames == 100


def test_on_a_lane_of_its_own_the_flow_finishes_the_oldest_stream_first():
    old, new = sounding(9.0, produced=130, spoken=50, chunks=3), sounding(5.0, produced=130, spoken=50, chunks=3)
    old.accepted_at, new.accepted_at = NOW - 11.0, NOW - 4.0
    limits = Limits(batch_frames=1)
    apart = Scheduler(FlatCosts(), limits, exclusive=False).plan([new, old], AT)
    assert apart.start[0].segment is segment_of(old)
    shared = Scheduler(FlatCosts(), limits, exclusive=True).plan([new, old], AT)
    assert shared.start[0].segment is segment_of(new)
    old.handed_out_s -= 8.99  # its listener would run dry
    new.accepted_at = NOW - 12.0
    assert Scheduler(FlatCosts(), limits, exclusive=False).plan([new, old], AT).start[0].segment is segment_of(old)
