"""What the scheduler decides, over plain numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.scheduler import FlowItem, Limits, Plan, RunningBatch, Scheduler, Situation
from vivavoce.engine.stream import Cut, Kind, Phase, Segment, Stream
from vivavoce.rates import Rates

RATES = Rates(sample_rate=24_000, samples_per_frame=480, tokens_per_second=25)
NOW = 100.0
AT = Situation(now=NOW, lm_open=True, synthesis_open=True, slots_free=8, slots_total=8, running=(), batches_open=True)


class Costs:
    """A machine on which a step takes 10 ms, and flow and vocoder 1 ms per frame."""

    def predict(self, stage, work):
        return {Stage.PREFILL: 0.02, Stage.DECODE: 0.01, Stage.FLOW: work.frames / 1000}.get(stage, work.frames / 5000)


class FlatCosts(Costs):
    """A machine on which a batch takes as long as one row."""

    def predict(self, stage, work):
        return 0.05 if stage is Stage.FLOW else super().predict(stage, work)


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
        assert plan.decode is not wanted
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
