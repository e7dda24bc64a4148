"""What the scheduler decides, over plain numbers."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from vivavoce.engine.chunk_policy import AttentionMode, ChunkPolicy
from vivavoce.engine.cost_model import ShortBatches, Stage
from vivavoce.engine.request_state import ChunkPlan, Phase, RequestState, SequenceState
from vivavoce.engine.scheduler import Limits, Plan, RunningBatch, Scheduler, SchedulerState
from vivavoce.rates import Rates

RATES = Rates(sample_rate=24_000, samples_per_frame=480, tokens_per_second=25)
NOW = 100.0
LOW_LATENCY = ChunkPolicy.low_latency()
AT = SchedulerState(
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
    """A machine on which a step takes 10 ms, flow and vocoder 1 ms per frame; flow_s: of any batch of the flow."""

    def __init__(self, flow_s=None, step_s=0.01):
        self.flow_s, self.step_s = flow_s, step_s

    def predict(self, stage, work):
        if stage in (Stage.FLOW, Stage.SHORT_FLOW):
            return work.frames / 1000 if self.flow_s is None else self.flow_s
        return self.step_s if stage in (Stage.PREFILL, Stage.DECODE) else work.frames / 5000


FLAT = Costs(flow_s=0.05)
"""A batch takes as long as one row."""


def scheduler(costs=Costs(), exclusive=True, padded=True, short=ShortBatches(), **limits):
    return Scheduler(costs, Limits(**limits), exclusive=exclusive, padded=padded, short=short)


def plan(*requests, at=AT, **options):
    return scheduler(**options).plan(requests, at)


def started(*requests, **options):
    """The requests whose chunks share the batch that is begun, the most urgent one first."""
    return [chunk.sequence.request for chunk in plan(*requests, **options).start]


def read(*requests, **options):
    """The requests that are prefilled."""
    return [sequence.request for sequence in plan(*requests, **options).prefill]


_numbers = iter(range(10_000))


def a_sequence(**fields):
    return SequenceState(None, prompt_rows=100, prompt_tokens=50, **fields)


def a_stream(phase=Phase.DECODING, produced=0, spoken=0, chunks=0, busy=False, policy=LOW_LATENCY, **fields):
    request = RequestState(next(_numbers), policy, fields.pop("accepted_at", NOW), RATES, None, **fields)
    request.add(a_sequence(phase=phase, produced=produced, spoken=spoken, chunks=chunks, busy=busy))
    return request


def sounding(ahead_s, **fields):
    """A stream whose listener will have played everything in `ahead_s` seconds."""
    return a_stream(**{"sounding_since": NOW - 10.0, "dry_at": NOW + ahead_s, "accepted_at": NOW - 11.0, **fields})


def cuttable(ahead_s, produced=80, chunks=2, **fields):
    """One that waits for nothing but the flow."""
    return sounding(ahead_s, produced=produced, chunks=chunks, phase=Phase.DECODED, **fields)


def offline(**fields):
    return a_stream(policy=None, **fields)


def first_of(stream):
    return stream.sequences[0]


def batch_of(stream, seconds=0.1):
    """A batch that runs, of a chunk of the stream."""
    hop, attention = (15, AttentionMode.BLOCKS) if stream.policy else (500, AttentionMode.FULL)
    return RunningBatch((ChunkPlan(first_of(stream), hop, not stream.policy, attention, hop + 3, 2 * hop, 0),), seconds)


def test_nothing_to_do():
    assert plan() == Plan()
    assert plan(a_stream(phase=Phase.STARVED)) == Plan()
    assert plan(a_stream(produced=18, closed=True)) == Plan()
    assert plan(a_stream(produced=40, phase=Phase.DECODED, busy=True)) == Plan()  # it is not cut again


def test_a_waiting_stream_takes_a_slot_before_others_decode_on():
    new, old = a_stream(phase=Phase.WAITING), sounding(5.0)
    assert read(old, new) == [new]
    assert plan(old, new, at=AT._replace(slots_free=0)).decode


def test_what_runs_dry_goes_before_a_newcomer():
    made = plan(a_stream(phase=Phase.WAITING), sounding(0.1))
    assert made.decode
    assert not made.prefill


def test_offline_work_is_read_while_all_streams_are_far_ahead():
    work = offline(phase=Phase.WAITING)
    assert plan(sounding(1.0), work).decode
    assert read(sounding(5.0), work) == [work]


def test_a_prefill_is_bounded_in_rows_but_never_empty():
    waiting = [a_stream(phase=Phase.WAITING, accepted_at=NOW - place) for place in range(5)]
    assert [len(read(*waiting, prefill_rows=rows)) for rows in (250, 10)] == [2, 1]


def test_the_oldest_newcomer_goes_first():
    young, old = a_stream(phase=Phase.WAITING), a_stream(phase=Phase.WAITING, accepted_at=NOW - 5)
    assert read(young, old, at=AT._replace(slots_free=1)) == [old]


def test_offline_work_leaves_slots_to_streams():
    work, stream, few = offline(phase=Phase.WAITING), a_stream(phase=Phase.WAITING), AT._replace(slots_free=2)
    assert read(work) == [work]
    assert plan(work, at=few, spare_slots=0.25) == Plan()
    assert read(work, stream, at=few, spare_slots=0.25) == [stream]


def test_a_row_that_waits_in_its_slot_needs_no_free_one():
    reading = a_stream(phase=Phase.READING)
    assert read(reading, at=AT._replace(slots_free=0)) == [reading]


def test_a_first_chunk_is_made_as_soon_as_its_tokens_are_there():
    for produced, wanted in ((17, False), (18, True)):
        stream = a_stream(produced=produced)
        made = plan(stream)
        assert bool(made.start) is wanted
        assert bool(made.decode) is not wanted
    assert [chunk[:5] for chunk in made.start] == [(first_of(stream), 15, False, AttentionMode.BLOCKS, 18)]


def test_the_prompt_comes_before_the_first_chunk():
    stream = a_stream(produced=40)
    first_of(stream).lacks_prompt = True
    assert [chunk[:2] for chunk in plan(stream).start] == [(first_of(stream), 0)]


def test_the_stream_that_runs_dry_first_is_made_first():
    late, later = cuttable(0.05), cuttable(3.0)
    assert started(later, late, batch_frames=1, urgent_batch_frames=1) == [late]


def test_first_chunks_go_before_streams_that_are_ahead():
    first = a_stream(produced=18)
    assert started(sounding(3.0, produced=80, chunks=2), first)[0] is first


def test_what_can_wait_shares_a_batch():
    streams = [cuttable(ahead, produced=28) for ahead in (3.0, 4.0, 5.0)]
    assert started(*streams, costs=FLAT) == streams
    assert len(started(*streams, costs=FLAT, batch_frames=100)) == 2


def test_where_company_saves_nothing_nobody_waits_for_it_and_where_it_is_free_even_the_late_take_it():
    streams = [cuttable(ahead, produced=28) for ahead in (0.05, 4.0)]
    assert started(*streams) == streams[:1]
    assert started(*streams, costs=FLAT) == streams


@pytest.mark.parametrize("policy", [None, ChunkPolicy.official()])
def test_attentions_do_not_mix(policy):
    other = a_stream(policy=policy, produced=80, phase=Phase.DECODED, accepted_at=NOW - 9)
    (chunk,) = plan(cuttable(5.0), other).start
    assert chunk.attention in (AttentionMode.BLOCKS, AttentionMode.GRID)


def test_a_batch_that_runs_is_finished_first():
    one = cuttable(3.0, busy=True)
    batch = batch_of(one)
    made = plan(one, cuttable(3.0), at=AT._replace(running=(batch,)))
    assert made.advance is batch
    assert not made.start


def test_a_first_chunk_overtakes_offline_work_that_runs():
    work, stream = offline(produced=500, phase=Phase.DECODED, busy=True), a_stream(produced=18)
    at = AT._replace(running=(batch := batch_of(work, 2.0),))
    assert started(work, stream, at=at)[0] is stream
    assert plan(work, stream, at=at._replace(batches_open=False)).advance is batch


def test_offline_work_fills_what_is_left_and_is_not_forgotten():
    stream = cuttable(3.0)
    young, old = (offline(produced=50, phase=Phase.DECODED, accepted_at=NOW - age) for age in (1, 90))
    assert started(young, stream)[0] is stream
    assert started(old, stream, patience_s=60)[0] is old


def test_queues_of_their_own_both_work():
    streams = [a_stream(produced=18), a_stream(produced=3)]
    made = plan(*streams, exclusive=False)
    assert made.decode
    assert made.start
    assert not plan(*streams, at=AT._replace(lm_open=False), exclusive=False).decode
    assert not plan(*streams, at=AT._replace(synthesis_open=False), exclusive=False).start


@pytest.mark.parametrize(("decoding", "steps"), [(1, 1), (7, 1), (8, 2), (31, 2), (32, 4), (200, 4)])
def test_many_that_decode_share_launches_of_several_steps(decoding, steps):
    some = partial(sounding, 3.0, chunks=2), offline
    for streams in ([one(produced=20) for _ in range(decoding)] for one in some):
        assert plan(*streams, exclusive=False).decode == steps
        assert plan(*streams, exclusive=True).decode == 1


@pytest.mark.parametrize(
    ("produced", "in_flight", "steps"), [(0, 0, 4), (15, 0, 3), (17, 0, 1), (15, 1, 2), (15, 3, 4)]
)
def test_a_first_chunk_waits_for_no_token_that_it_does_not_need(produced, in_flight, steps):
    """It needs 18; with 3 that are lacking and 3 on their way it waits for no step to come."""
    streams = [*(sounding(3.0, produced=20, chunks=2) for _ in range(40)), a_stream(produced=produced)]
    assert plan(*streams, at=AT._replace(steps_in_flight=in_flight), exclusive=False).decode == steps


@pytest.mark.parametrize("hop", [15, 25])
def test_on_one_processor_a_chunk_that_is_awaited_goes_before_the_tokens_after_it(hop):
    stream = sounding(0.3, produced=hop, chunks=2, busy=True)
    batch = RunningBatch((batch_of(stream).chunks[0]._replace(hop=hop),), 0.1)
    at, other = AT._replace(running=(batch,)), sounding(0.3, produced=10, chunks=2)
    assert plan(stream, at=at).advance is batch
    assert plan(stream, other, at=at).decode, "another listener misses them sooner"


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize(("slack_s", "overtakes"), [(0.1, True), (2.5, False)])
def test_what_runs_dry_overtakes_a_batch_that_can_wait(exclusive, slack_s, overtakes):
    ahead, other = cuttable(3.0, busy=True), cuttable(slack_s)
    at = AT._replace(running=(batch := batch_of(ahead),), lm_open=False)
    made = plan(ahead, other, at=at, exclusive=exclusive)
    assert [item.sequence.request for item in made.start] == ([other] if overtakes else [])
    assert (made.advance is batch) is not overtakes
    first_of(other).busy = True
    assert plan(ahead, other, at=at, exclusive=exclusive).advance is batch


@pytest.mark.parametrize(("ahead_s", "overtakes"), [(1.0, True), (2.0, False)])
def test_a_chunk_s_own_work_counts_before_its_listener_runs_dry(ahead_s, overtakes):
    """Priced at a second: what is two seconds ahead can wait, what is one second ahead cannot."""
    at = AT._replace(running=(batch_of(sounding(9.0)),), lm_open=False)
    dear = Costs(flow_s=1.0, step_s=0.0)
    assert bool(started(cuttable(ahead_s, produced=500, chunks=8), at=at, costs=dear, exclusive=False)) is overtakes


def test_a_stream_overtakes_offline_work_in_a_queue_of_its_own():
    work, stream = offline(produced=500, phase=Phase.DECODED, busy=True), cuttable(9.0, chunks=0)
    at = AT._replace(running=(batch := batch_of(work, 2.0),))
    assert started(work, stream, at=at, exclusive=False)[0] is stream
    assert plan(work, offline(produced=50, phase=Phase.DECODED), at=at, exclusive=False).advance is batch


def test_the_next_segment_is_decoded_while_the_last_one_is_heard():
    stream, following = sounding(3.0, produced=40, phase=Phase.DECODED, busy=True), a_sequence()
    stream.add(following)
    assert plan(stream).prefill == (following,)
    following.phase, following.produced = Phase.DECODED, 60
    assert plan(stream) == Plan()  # its audio is not made before its turn
    stream.current = 1
    assert plan(stream).start[0].sequence is following


def test_decode_steps_that_nobody_waits_for_give_way_to_an_urgent_batch():
    silent = a_stream(produced=18, busy=True)
    at = AT._replace(running=(batch_of(silent),), synthesis_open=False)

    def planned(*others, at=at):
        return plan(silent, *others, at=at, exclusive=False)

    assert planned() == Plan()
    assert planned(sounding(5.0)) == Plan()
    assert planned(a_stream(produced=3)).decode  # a first chunk lacks tokens
    assert planned(sounding(0.1)).decode  # its listener would run dry
    assert planned(offline(accepted_at=NOW - 61.0)).decode  # it has waited for too long
    following = sounding(0.1, phase=Phase.DECODED, produced=30, spoken=30)
    following.add(a_sequence(phase=Phase.DECODING))
    assert planned(following).decode  # the next sentence begins before the listener runs dry
    first_of(following).spoken = 0
    assert planned(following) == Plan()  # more of this one is still to be heard
    silent.closed = True
    assert planned(sounding(5.0)).decode  # nobody waits for the batch any more
    silent.closed = False
    assert planned(at=at._replace(running=(batch_of(sounding(5.0, produced=100)),))).decode


def test_steps_that_many_share_wait_for_the_flow_until_first_tokens_have_waited():
    crowd = [sounding(9.0) for _ in range(10)]
    new, idle = a_stream(produced=1, accepted_at=NOW - 5), Plan()
    # The batch's listener is not about to run dry, and has little left.
    pressed = AT._replace(running=(batch_of(sounding(0.6, produced=100)),), synthesis_open=False)

    def planned(*streams, at=pressed, costs=FLAT):
        return plan(*streams, at=at, exclusive=False, costs=costs)

    assert planned(*crowd) == idle
    first_of(new).read_at = NOW - 0.015
    assert planned(*crowd, new) == idle
    calm = AT._replace(running=(batch_of(sounding(9.0, produced=100)),), synthesis_open=False)
    assert planned(*crowd, at=calm) == idle
    assert planned(*crowd, new, at=calm).decode
    assert planned(*crowd, new, at=calm, costs=Costs()) == idle  # a slow device has no time to spare
    first_of(new).read_at = NOW - 0.025  # 2 ms for each of eleven
    assert planned(*crowd, new).decode
    many = [sounding(9.0) for _ in range(100)]
    assert planned(*many, new) == idle
    assert planned(*many, new, at=calm) == idle  # too many for it
    first_of(new).read_at = NOW - 0.105
    assert planned(*many, new).decode
    assert planned(*crowd, sounding(0.1)).decode  # its listener would run dry
    assert planned(*crowd[:5], new).decode  # of few each step costs the same
    assert planned(*crowd, at=calm._replace(running=())).decode
    waiting, old = offline(phase=Phase.WAITING), offline(produced=100, accepted_at=NOW - 61.0)
    assert planned(*crowd, waiting).prefill == (first_of(waiting),)  # nobody is kept from tokens by it
    assert planned(*crowd, old) == idle  # it gets its tokens with theirs
    assert planned(*crowd, at=calm._replace(running=(batch_of(old),))).decode


def test_where_batches_are_short_streams_are_about_to_run_dry_later():
    stream, first = sounding(0.3, produced=60, spoken=30, chunks=2), a_stream(produced=30)
    slow = scheduler(costs=FLAT, exclusive=False, guard_s=0.4)
    assert slow.urgency(first_of(stream), NOW, 0.0).rank == 0
    slow.plan([], AT)
    assert slow.urgency(first_of(stream), NOW, 0.0).rank == 2
    assert slow.plan([stream, first], AT).start[0].sequence is first_of(first)


@pytest.mark.parametrize(("padded", "rows"), [(True, 2), (False, 4)])
def test_batches_of_offline_work_alone_are_larger_where_nothing_is_padded(padded, rows):
    waiting = [offline(phase=Phase.DECODED, produced=30) for _ in range(4)]
    limits = {"batch_frames": 400, "offline_batch_frames": 650}
    assert len(started(*waiting, costs=FLAT, exclusive=False, padded=padded, **limits)) == rows


def test_limits_within_what_memory_allows():
    assert Limits().within(16_384) == Limits().within(None) == Limits()
    small = Limits().within(2_048)
    assert (small.batch_frames, small.urgent_batch_frames, small.offline_batch_frames) == (2_048,) * 3
    assert Limits(urgent_batch_frames=100).within(2_048).urgent_batch_frames == 100


def test_on_a_queue_of_its_own_the_flow_finishes_the_oldest_stream_first():
    old, new = (sounding(ahead, produced=130, spoken=50, chunks=3) for ahead in (9.0, 5.0))
    new.accepted_at = NOW - 4.0
    one = {"costs": FLAT, "batch_frames": 1}
    assert started(new, old, exclusive=False, **one) == [old]
    assert started(new, old, exclusive=True, **one) == [new]
    old.dry_at -= 8.99  # its listener would run dry
    new.accepted_at = NOW - 12.0
    assert started(new, old, exclusive=False, **one)[0] is old


def batch(**fields):
    """A batch request, which has chunks like a stream and no listener."""
    return a_stream(batch=True, **fields)


def test_batch_requests_never_compete_with_listeners_however_old():
    old = batch(accepted_at=NOW - 5_000.0, produced=80, chunks=2, phase=Phase.DECODED)
    assert started(old, cuttable(60.0))[0].live
    assert started(old) == [old]
    assert plan(old, sounding(60.0)).decode
    running = AT._replace(running=(batch_of(old),))
    new = a_stream(produced=18)
    assert [chunk.sequence.request for chunk in plan(old, new, at=running).start] == [new]


def test_batch_requests_leave_slots_to_listeners():
    few = AT._replace(slots_free=2)
    assert read(batch(phase=Phase.WAITING), at=few) == []
    new = a_stream(phase=Phase.WAITING)
    assert read(batch(phase=Phase.WAITING, accepted_at=NOW - 100.0), new, at=few) == [new]


def test_batch_requests_are_never_late():
    one = batch(sounding_since=NOW - 10.0, dry_at=NOW - 5.0)
    assert one.hand_out(1.0, NOW) == 0.0
    assert one.timings.underruns == 0


def test_a_chunk_that_the_guard_is_not_sure_of_waits_while_its_listener_has_audio():
    def guarded(ahead_s, produced=40, phase=Phase.DECODING):
        stream = sounding(ahead_s, produced=produced, chunks=2, phase=phase)
        first_of(stream).first_run = first_of(stream).cursor = object()
        return stream

    assert started(guarded(5.0)) == []
    first_of(unseen := guarded(5.0)).cursor = None  # the model has no heads that show the text
    assert started(unseen) == [unseen]
    for ready in (guarded(0.5), guarded(5.0, produced=120), guarded(5.0, phase=Phase.DECODED)):
        assert started(ready) == [ready]
    plain = sounding(5.0, produced=40, chunks=2)
    assert started(plain) == [plain]


@pytest.mark.parametrize(
    ("ahead_s", "silent", "costs", "goes_on"),
    [
        (5.0, {"produced": 3}, FLAT, False),
        (5.0, {"produced": 3}, Costs(), True),  # a slow device
        (5.0, {"produced": 3, "phase": Phase.READING}, FLAT, True),
        (5.0, {"produced": 3, "closed": True}, FLAT, True),
        (5.0, {"produced": 18, "busy": True}, FLAT, True),
        (0.9, {"produced": 3}, FLAT, True),
    ],
)
def test_a_batch_pauses_for_first_tokens_while_all_its_listeners_have_enough(ahead_s, silent, costs, goes_on):
    running = batch_of(sounding(ahead_s, busy=True))
    made = plan(a_stream(**silent), at=AT._replace(running=(running,)), exclusive=False, costs=costs)
    assert (made.advance is running) is goes_on


@pytest.mark.parametrize(
    ("others", "batches_open"),
    [
        ([sounding(9.0) for _ in range(32)], True),  # too many decode
        ([cuttable(0.6)], True),  # a ready chunk whose listener has little in hand
        ([cuttable(0.05)], False),  # one that could not even begin
        ([a_stream(produced=18)], False),
    ],
)
def test_a_batch_pauses_only_if_no_other_listener_needs_the_flow(others, batches_open):
    running, silent = batch_of(sounding(5.0, busy=True)), a_stream(produced=3)
    at = AT._replace(running=(running,), batches_open=batches_open)
    assert plan(silent, at=at, exclusive=False, costs=FLAT) == Plan(decode=1)
    assert plan(silent, *others, at=at, exclusive=False, costs=FLAT).advance is running


def test_a_batch_of_offline_work_does_not_pause_and_one_queue_always_has_work():
    silent, work = a_stream(produced=3), offline(produced=100)
    running = batch_of(offline(produced=500, busy=True), 2.0)
    assert plan(silent, at=AT._replace(running=(running,)), exclusive=False, costs=FLAT).advance is running
    for _ in range(32):  # segments of one request
        work.add(a_sequence(phase=Phase.DECODING, produced=3))
    calm = AT._replace(running=(batch_of(sounding(5.0, busy=True)),))
    made = plan(silent, work, at=calm, exclusive=False, costs=FLAT)
    assert made.decode or made.advance


def test_short_chunks_that_are_urgent_share_a_batch_with_short_ones_only():
    fast = {"costs": Costs(flow_s=0.5), "exclusive": False, "padded": False, "short": ShortBatches(40, 3)}
    news = [a_stream(produced=18, accepted_at=NOW - place) for place in (4, 3, 2, 1)]
    far, late = cuttable(8.0), cuttable(0.1)
    assert first_of(news[0]).next_chunk(NOW).frames == 30
    assert started(far, *news[:2], **fast) == news[:2]
    assert started(*news, **fast) == news[:3]
    # A long chunk that cannot wait goes first, and short ones join it: alone they would wait for all of it.
    assert started(late, news[0], **fast) == [late, news[0]]
    # A stream's second chunk joins a long first one, and first chunks do not.
    fresh, second = a_stream(produced=40, accepted_at=NOW), sounding(0.1, produced=18 + 15, chunks=1, spoken=15)
    first_of(fresh).flow = SimpleNamespace(known=None, prompt_end=50)
    assert first_of(fresh).next_chunk(NOW).frames > 40 >= first_of(second).next_chunk(NOW).frames
    assert started(second, fresh, **fast) == [second, fresh]
    assert started(news[0], fresh, **fast) == news[:1]
    # A short chunk that has time joins long ones.
    short = sounding(8.0, produced=18 + 20, chunks=1, spoken=15, accepted_at=NOW - 20.0)
    assert first_of(short).next_chunk(NOW).frames <= 40
    assert started(short, far, **fast) == [short, far]
    assert started(short, **fast) == [short]
