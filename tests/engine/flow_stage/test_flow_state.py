"""State is a cache: chunks come out the same with it, without it, and whatever becomes of it on the way."""

from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.plain.flow import stream_mel, stream_units
from tests.engine.engine_helpers import BOTH
from tests.engine.flow_stage.flow_oracle import (
    check,
    check_pages,
    forget,
    mel_of,
    page_bytes,
    perform,
    run,
    speak,
    speech,
    stage_of,
    voice,
)
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, padded
from vivavoce.models.layers import in_turn

BLOCKS = AttentionMode.BLOCKS
TOKENS = speech(250)


def used(stage):
    """Pages in use, each of which is held by exactly those who say so."""
    check_pages(stage)
    return stage.pool.total - len(stage.pool.free)


def expected_of(models, prompt, *hops):
    """Mel of all hops after a prompt, block by block, each with the usual lookahead."""
    return mel_of(models, voice(prompt), TOKENS[: sum(hops) + 3], hops)


@st.composite
def schedules(draw):
    """Streams as (prompt tokens, hops), and the order in which batches of them are computed."""
    hops = st.lists(st.one_of(st.integers(1, 3), st.integers(4, 40)), min_size=1, max_size=3)
    prompts = st.sampled_from([0, 1, 3, 4, 28, 30, 60])
    streams = draw(st.lists(st.tuples(prompts, hops), min_size=1, max_size=3))
    left = [len(hops) for _, hops in streams]
    batches = []
    while any(left):
        able = [place for place, count in enumerate(left) if count]
        batch = draw(st.lists(st.sampled_from(able), min_size=1, unique=True))
        for place in batch:
            left[place] -= 1
        batches.append((batch, draw(st.sampled_from(["", "", "prompts", "evict", "abandon"]))))
    return streams, batches


@pytest.mark.slow
@BOTH
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    schedule=schedules(),
    pages=st.sampled_from([0, 3, 8, 40]),
    ahead=st.sampled_from([3, 3, 2, 1, 0]),
    both=st.sampled_from([None, in_turn]),
)
def test_any_schedule_in_any_company_computes_the_same(models, schedule, pages, ahead, both):
    streams, _ = schedule
    stage = stage_of(models, pages, both=both)
    opened = [stage.open(voice(prompt)) for prompt, _ in streams]
    with mock.patch.object(padded, "LEAST_SPLIT", 1):
        mels = perform(stage, opened, TOKENS, schedule, ahead=ahead)
    for (prompt, hops), made in zip(streams, mels, strict=True):
        known = sum(hops) + ahead
        units = stream_units(prompt, hops, known, ahead, models.config.flow.encoder.lookahead)
        check(made, stream_mel(models, voice(prompt), TOKENS[:known], units))
    for stream in opened:
        stage.close(stream)
    forget(stage)
    assert used(stage) == 0


@BOTH
def test_a_chunk_computes_its_own_frames_only(models):
    stage, hops = stage_of(models, 20), [18, 25, 40, 1]
    assert sum(buffer.page_bytes for buffer in stage.pool.buffers) == page_bytes(models)
    stream = stage.open(voice(30))
    check(speak(stage, stream, TOKENS, hops), expected_of(models, 30, *hops))
    assert stage.planner.recomputed == 0
    assert used(stage) == -(-(30 + sum(hops)) // 25)


@BOTH
def test_a_batch_of_chunks_and_prompts(models):
    stage = stage_of(models, 40)
    first, second, third = (stage.open(voice(prompt)) for prompt in (30, 60, 0))
    speak(stage, first, TOKENS, [18])
    chunk = FlowRow(first, TOKENS[:41], 20, BLOCKS)
    mels = run(stage, [FlowRow(second), chunk, FlowRow(third, TOKENS[:18], 15, BLOCKS)])
    assert mels[0] is None
    check(mels[1], expected_of(models, 30, 18, 20)[36:])
    check(mels[2], expected_of(models, 0, 15))
    last = FlowRow(second, TOKENS[:12], 9, BLOCKS)
    check(run(stage, [last])[0], expected_of(models, 60, 9))
    assert last.before is stage.prompts.states[second.voice]


@BOTH
def test_voices_of_the_same_content_share_their_pages(models):
    stage = stage_of(models, 20)
    one, other, stranger = stage.open(voice(60)), stage.open(voice(60)), stage.open(voice(60, seed=1))
    assert stage.lacks_prompt(one)
    rows = [FlowRow(one), FlowRow(other)]
    run(stage, rows)
    assert [row.after is None for row in rows] == [False, True], "the same prompt is computed twice"
    assert not stage.lacks_prompt(one)
    assert not stage.lacks_prompt(other)
    assert stage.lacks_prompt(stranger)
    assert (used(stage), len(stage.prompts.states)) == (3, 1)
    # Two whole pages are shared; the third, of 7 tokens, goes on in each stream.
    expected = expected_of(models, 60, 5, 5)
    check(speak(stage, one, TOKENS, [5]), expected[:10])
    check(speak(stage, other, TOKENS, [5]), expected[:10])
    assert used(stage) == 5
    check(speak(stage, one, TOKENS, [5]), expected[10:])
    check(speak(stage, other, TOKENS, [5]), expected[10:])
    stage.close(one)
    stage.close(one)
    assert used(stage) == 4
    stage.close(other)
    stage.close(stranger)
    assert used(stage) == 3
    forget(stage)
    assert used(stage) == 0


@pytest.mark.parametrize("prompt", [0, 1, 3])
def test_short_prompts_have_nothing_to_keep(models, prompt):
    stage = stage_of(models, 20)
    stream = stage.open(voice(prompt))
    assert not stage.lacks_prompt(stream)
    assert run(stage, [FlowRow(stream)]) == [None]
    assert len(stage.prompts.states) == 0


def test_a_voice_is_known_from_the_first_stream_that_continues_its_state(models):
    stage = stage_of(models, pages=8)
    _, first, second = (stage.open(voice(30)) for _ in range(3))  # one for offline speech, which does not say so
    assert first.meet()
    assert not second.meet()


def test_without_room_for_a_prompt_it_is_not_asked_for(models):
    stage = stage_of(models, 3)
    assert not stage.lacks_prompt(stage.open(voice(60)))
    assert stage.lacks_prompt(stage.open(voice(50)))


def test_the_prompt_used_least_recently_gives_way(models):
    stage = stage_of(models, 7)
    old, recent, new = (stage.open(voice(30, seed)) for seed in range(3))
    run(stage, [FlowRow(old)])
    run(stage, [FlowRow(recent)])
    speak(stage, old, TOKENS, [2])
    stage.close(old)
    run(stage, [FlowRow(new)])
    speak(stage, stage.open(voice(0)), TOKENS, [60])
    assert len(stage.prompts.states) == 2
    assert stage.lacks_prompt(recent)
    assert not stage.lacks_prompt(stage.open(voice(30, 0)))


@BOTH
def test_a_full_pool_recomputes(models):
    stage = stage_of(models, 4)
    lucky, poor = stage.open(voice(30)), stage.open(voice(28))
    speak(stage, lucky, TOKENS, [40])
    hops = [20, 10, 30]
    expected = expected_of(models, 28, *hops)
    check(speak(stage, poor, TOKENS, hops[:2]), expected[:60])
    assert stage.planner.recomputed == 1
    stage.close(lucky)
    check(speak(stage, poor, TOKENS, hops[2:]), expected[60:])
    assert used(stage) == 4


def test_a_stream_that_outgrows_the_pool_frees_its_pages(models):
    stage = stage_of(models, 2)
    stream = stage.open(voice(0))
    hops = [40, 20, 5]
    check(speak(stage, stream, TOKENS, hops), expected_of(models, 0, *hops))
    assert used(stage) == 0
    assert stage.planner.recomputed == 2


@BOTH
def test_an_abandoned_batch_leaves_no_trace(models):
    stage = stage_of(models, 20)
    stream, other = stage.open(voice(30)), stage.open(voice(60))
    speak(stage, stream, TOKENS, [10])
    held = used(stage)
    job = stage.start([FlowRow(stream, TOKENS[:100], 60, BLOCKS), FlowRow(other)])
    for _ in range(3):
        job.step()
    job.abandon()
    job.abandon()
    assert used(stage) == held
    assert stage.lacks_prompt(other)
    check(speak(stage, stream, TOKENS, [12]), expected_of(models, 30, 10, 12)[20:])


@BOTH
def test_a_step_that_fails_abandons_the_batch(models, monkeypatch):
    stage = stage_of(models, 20)
    stream = stage.open(voice(30))
    job = stage.start([FlowRow(stream, TOKENS[:20], 10, BLOCKS)])
    with monkeypatch.context() as patch:
        patch.setattr(models.flow.estimator.out, "forward", broken)
        with pytest.raises(MemoryError):
            job.step()
        patch.setattr(models.flow.encoder, "encode", broken)
        with pytest.raises(MemoryError):
            stage.start([FlowRow(stream, TOKENS[:20], 10, BLOCKS)])
    assert used(stage) == 0
    check(speak(stage, stream, TOKENS, [10]), expected_of(models, 30, 10))


def test_a_chunk_that_cannot_copy_its_voice_s_last_page_holds_none(models, monkeypatch):
    stage = stage_of(models, 20)
    stream = stage.open(voice(60))
    run(stage, [FlowRow(stream)])
    with monkeypatch.context() as patch:
        patch.setattr(stage.pool, "copy", broken)
        with pytest.raises(MemoryError):
            stage.start([FlowRow(stream, TOKENS[:13], 10, BLOCKS)])
    assert used(stage) == 3
    check(speak(stage, stream, TOKENS, [10]), expected_of(models, 60, 10))


def broken(*_):
    raise MemoryError


def test_pages_of_a_running_batch_outlive_close_and_eviction(models):
    stage = stage_of(models, 8)
    closed, evicted = stage.open(voice(30)), stage.open(voice(28))
    run(stage, [FlowRow(closed)])
    speak(stage, evicted, TOKENS, [6])
    job = stage.start([FlowRow(s, TOKENS[: s.spoken + 13], 10, BLOCKS) for s in (closed, evicted)])
    job.step()
    stage.close(closed)
    forget(stage)
    forget(stage)
    neighbour = stage.open(voice(4))
    expected = expected_of(models, 4, 40)
    check(speak(stage, neighbour, TOKENS, [40]), expected)
    while job.steps_left:
        job.step()
    mels = job.result()
    check(mels[0], expected_of(models, 30, 10))
    check(mels[1], expected_of(models, 28, 6, 10)[12:])
    check_pages(stage)
    check(speak(stage, evicted, TOKENS, [7]), expected_of(models, 28, 6, 10, 7)[32:])
    for stream in (evicted, neighbour):
        stage.close(stream)
    forget(stage)
    assert used(stage) == 0


def test_two_batches_may_compute_the_same_prompt(models):
    stage = stage_of(models, 12)
    streams = [stage.open(voice(30)) for _ in range(2)]
    jobs = [stage.start([FlowRow(stream)]) for stream in streams]
    for _ in range(jobs[0].steps_left):
        for job in jobs:
            job.step()
    for job in jobs:
        job.result()
    assert used(stage) == 2
    check(speak(stage, streams[1], TOKENS, [8]), expected_of(models, 30, 8))


@BOTH
def test_what_a_page_held_before_does_not_matter(models):
    stage = stage_of(models, 2)
    # All that a stream leaves in its pages may be spoilt, be it by an overflow in half precision.
    for buffer in stage.pool.buffers:
        buffer.keys[1:] = float("nan")
    check(speak(stage, stage.open(voice(0)), TOKENS, [10, 20]), expected_of(models, 0, 10, 20))
