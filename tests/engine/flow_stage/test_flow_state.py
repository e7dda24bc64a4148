"""State is a cache: chunks come out the same with it, without it, and whatever becomes of it on the way."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.plain.flow import stream_mel, stream_units
from tests.engine.flow_stage.flow_oracle import mel_of, page_bytes, perform, run, say, speech, voice
from vivavoce.engine.flow_stage import Attention, FlowChunk, FlowStage, PromptWork

BLOCKS = Attention.BLOCKS
TOKENS = speech(250)


def evict(stage: FlowStage) -> None:
    """Take the prompts that nobody uses, or else all streams' state, as a full pool would bit by bit."""
    prompts = stage._prompts
    unused = [key for key, state in prompts._states.items() if prompts._unused(state)]
    for key in unused:
        prompts._drop(key)
    for stream in [] if unused else stage._streams:
        stage._drop(stream)


def stage_of(models, pages):
    """A stage with so many pages, and the one that nothing is read from."""
    stage = FlowStage(models, state_bytes=(pages + 1) * page_bytes(models))
    assert stage.statistics().pages_total == pages
    return stage


def speak(stage, stream, hops):
    """All chunks of a stream, one after the other."""
    mels, spoken = [], stream.spoken
    for hop in hops:
        spoken += hop
        mels.append(say(stage, stream, TOKENS[: spoken + 3], hop, BLOCKS))
    return torch.cat(mels)


def check(mel, expected):
    torch.testing.assert_close(mel, expected, atol=1e-4, rtol=0)


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


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(schedule=schedules(), pages=st.sampled_from([0, 3, 8, 40]), ahead=st.sampled_from([3, 3, 2, 1, 0]))
@torch.inference_mode()
def test_any_schedule_in_any_company_computes_the_same(models, schedule, pages, ahead):
    streams, _ = schedule
    stage = stage_of(models, pages)
    opened = [stage.open(voice(prompt)) for prompt, _ in streams]
    mels = perform(stage, opened, TOKENS, schedule, evict, ahead=ahead)
    for (prompt, hops), made in zip(streams, mels, strict=True):
        known = sum(hops) + ahead
        units = stream_units(prompt, hops, known, ahead, models.config.flow.encoder.lookahead)
        check(made, stream_mel(models, voice(prompt), TOKENS[:known], units))
    for stream in opened:
        stage.close(stream)
    evict(stage)
    assert stage.balanced()
    assert stage.statistics().pages_in_use == 0


@torch.inference_mode()
def test_a_chunk_computes_its_own_frames_only(models):
    stage, hops = stage_of(models, 20), [18, 25, 40, 1]
    stream = stage.open(voice(30))
    check(speak(stage, stream, hops), mel_of(models, voice(30), TOKENS[:87], hops))
    assert stage.statistics().recomputed == 0
    assert stage.statistics().pages_in_use == -(-(30 + sum(hops)) // 25)


@torch.inference_mode()
def test_a_batch_of_chunks_and_prompts(models):
    stage = stage_of(models, 40)
    first, second, third = (stage.open(voice(prompt)) for prompt in (30, 60, 0))
    speak(stage, first, [18])
    chunk = FlowChunk(first, TOKENS[:41], 20, BLOCKS)
    mels = run(stage, [PromptWork(second), chunk, FlowChunk(third, TOKENS[:18], 15, BLOCKS)])
    assert mels[0] is None
    check(mels[1], mel_of(models, voice(30), TOKENS[:41], [18, 20])[36:])
    check(mels[2], mel_of(models, voice(0), TOKENS[:18], [15]))
    check(speak(stage, second, [9]), mel_of(models, voice(60), TOKENS[:12], [9]))
    assert stage.statistics().prompt_hits == 1


@torch.inference_mode()
def test_voices_of_the_same_content_share_their_pages(models):
    stage = stage_of(models, 20)
    one, other, stranger = stage.open(voice(60)), stage.open(voice(60)), stage.open(voice(60, seed=1))
    assert stage.lacks_prompt(one)
    run(stage, [PromptWork(one), PromptWork(other)])
    assert not stage.lacks_prompt(one)
    assert not stage.lacks_prompt(other)
    assert stage.lacks_prompt(stranger)
    statistics = stage.statistics()
    assert (statistics.pages_in_use, statistics.prompts, statistics.prompt_misses) == (3, 1, 1)
    # Two whole pages are shared; the third, of 7 tokens, goes on in each stream.
    expected = mel_of(models, voice(60), TOKENS[:13], [5, 5])
    check(speak(stage, one, [5]), expected[:10])
    check(speak(stage, other, [5]), expected[:10])
    assert stage.statistics().pages_in_use == 5
    check(speak(stage, one, [5]), expected[10:])
    check(speak(stage, other, [5]), expected[10:])
    stage.close(one)
    stage.close(one)
    assert stage.statistics().pages_in_use == 4
    stage.close(other)
    stage.close(stranger)
    assert stage.statistics().pages_in_use == 3
    assert stage.balanced()
    evict(stage)
    assert stage.statistics().pages_in_use == 0


@pytest.mark.parametrize("prompt", [0, 1, 3])
@torch.inference_mode()
def test_short_prompts_have_nothing_to_keep(models, prompt):
    stage = stage_of(models, 20)
    stream = stage.open(voice(prompt))
    assert not stage.lacks_prompt(stream)
    assert run(stage, [PromptWork(stream)]) == [None]
    assert stage.statistics().prompts == 0


@torch.inference_mode()
def test_without_room_for_a_prompt_it_is_not_asked_for(models):
    stage = stage_of(models, 3)
    assert not stage.lacks_prompt(stage.open(voice(60)))
    assert stage.lacks_prompt(stage.open(voice(50)))


@torch.inference_mode()
def test_the_prompt_used_least_recently_gives_way(models):
    stage = stage_of(models, 7)
    old, recent, new = (stage.open(voice(30, seed)) for seed in range(3))
    run(stage, [PromptWork(old)])
    run(stage, [PromptWork(recent)])
    speak(stage, old, [2])
    stage.close(old)
    run(stage, [PromptWork(new)])
    speak(stage, stage.open(voice(0)), [60])
    assert stage.statistics().prompts == 2
    assert stage.lacks_prompt(recent)
    assert not stage.lacks_prompt(stage.open(voice(30, 0)))


@torch.inference_mode()
def test_a_full_pool_recomputes(models):
    stage = stage_of(models, 4)
    lucky, poor = stage.open(voice(30)), stage.open(voice(28))
    speak(stage, lucky, [40])
    hops = [20, 10, 30]
    expected = mel_of(models, voice(28), TOKENS[:63], hops)
    check(speak(stage, poor, hops[:2]), expected[:60])
    assert stage.statistics().recomputed == 1
    stage.close(lucky)
    check(speak(stage, poor, hops[2:]), expected[60:])
    assert stage.statistics().pages_in_use == 4


@torch.inference_mode()
def test_a_stream_that_outgrows_the_pool_frees_its_pages(models):
    stage = stage_of(models, 2)
    stream = stage.open(voice(0))
    hops = [40, 20, 5]
    check(speak(stage, stream, hops), mel_of(models, voice(0), TOKENS[:68], hops))
    assert stage.statistics().pages_in_use == 0
    assert stage.statistics().recomputed == 2


@torch.inference_mode()
def test_an_abandoned_batch_leaves_no_trace(models):
    stage = stage_of(models, 20)
    stream, other = stage.open(voice(30)), stage.open(voice(60))
    speak(stage, stream, [10])
    used = stage.statistics().pages_in_use
    job = stage.start([FlowChunk(stream, TOKENS[:100], 60, BLOCKS), PromptWork(other)])
    for _ in range(3):
        job.step()
    job.abandon()
    job.abandon()
    assert stage.statistics().pages_in_use == used
    assert stage.balanced()
    assert stage.lacks_prompt(other)
    check(speak(stage, stream, [12]), mel_of(models, voice(30), TOKENS[:25], [10, 12])[20:])


@torch.inference_mode()
def test_a_step_that_fails_abandons_the_batch(models, monkeypatch):
    stage = stage_of(models, 20)
    stream = stage.open(voice(30))
    job = stage.start([FlowChunk(stream, TOKENS[:20], 10, BLOCKS)])
    with monkeypatch.context() as patch:
        patch.setattr(models.flow.estimator.up, "forward", broken)
        with pytest.raises(MemoryError):
            job.step()
        patch.setattr(models.flow.encoder.up_embed, "forward", broken)
        with pytest.raises(MemoryError):
            stage.start([FlowChunk(stream, TOKENS[:20], 10, BLOCKS)])
    assert stage.statistics().pages_in_use == 0
    assert stage.balanced()
    check(speak(stage, stream, [10]), mel_of(models, voice(30), TOKENS[:13], [10]))


@torch.inference_mode()
def test_a_chunk_that_cannot_copy_its_voice_s_last_page_holds_none(models, monkeypatch):
    stage = stage_of(models, 20)
    stream = stage.open(voice(60))
    run(stage, [PromptWork(stream)])
    with monkeypatch.context() as patch:
        patch.setattr(stage._pool, "copy", broken)
        with pytest.raises(MemoryError):
            stage.start([FlowChunk(stream, TOKENS[:13], 10, BLOCKS)])
    assert stage.statistics().pages_in_use == 3
    assert stage.balanced()
    check(speak(stage, stream, [10]), mel_of(models, voice(60), TOKENS[:13], [10]))


def broken(*_):
    raise MemoryError


@torch.inference_mode()
def test_pages_of_a_running_batch_outlive_close_and_eviction(models):
    stage = stage_of(models, 8)
    closed, evicted = stage.open(voice(30)), stage.open(voice(28))
    run(stage, [PromptWork(closed)])
    speak(stage, evicted, [6])
    job = stage.start([FlowChunk(s, TOKENS[: s.spoken + 13], 10, BLOCKS) for s in (closed, evicted)])
    job.step()
    stage.close(closed)
    evict(stage)
    evict(stage)
    neighbour = stage.open(voice(4))
    expected = mel_of(models, voice(4), TOKENS[:43], [40])
    check(speak(stage, neighbour, [40]), expected)
    while job.steps_left:
        job.step()
    mels = job.result()
    check(mels[0], mel_of(models, voice(30), TOKENS[:13], [10]))
    check(mels[1], mel_of(models, voice(28), TOKENS[:19], [6, 10])[12:])
    assert stage.balanced()
    check(speak(stage, evicted, [7]), mel_of(models, voice(28), TOKENS[:26], [6, 10, 7])[32:])
    for stream in (evicted, neighbour):
        stage.close(stream)
    evict(stage)
    assert stage.statistics().pages_in_use == 0
    assert stage.balanced()


@torch.inference_mode()
def test_two_batches_may_compute_the_same_prompt(models):
    stage = stage_of(models, 12)
    streams = [stage.open(voice(30)) for _ in range(2)]
    jobs = [stage.start([PromptWork(stream)]) for stream in streams]
    for _ in range(jobs[0].steps_left):
        for job in jobs:
            job.step()
    for job in jobs:
        job.result()
    assert stage.balanced()
    assert stage.statistics().pages_in_use == 2
    check(speak(stage, streams[1], [8]), mel_of(models, voice(30), TOKENS[:11], [8]))


@torch.inference_mode()
def test_what_a_page_held_before_does_not_matter(models):
    stage = stage_of(models, 2)
    # All that a stream leaves in its pages may be spoilt, be it by an overflow in half precision.
    for shelf in stage._pool.shelves:
        shelf.keys[1:] = float("nan")
    check(speak(stage, stage.open(voice(0)), [10, 20]), mel_of(models, voice(0), TOKENS[:33], [10, 20]))
