"""What streams sound like: their chunks, joined, are one utterance."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.plain import plain_speech, plain_stream
from benchmarks.plain.flow import stream_mel, stream_units
from benchmarks.plain.vocoder import whole as vocoded
from tests.engine.engine_helpers import (
    LOW_LATENCY,
    MUTE,
    PATIENCE_S,
    VOICE,
    arriving,
    given,
    joined,
    offline,
    relative_error,
    running,
    same,
    segment,
    stream,
    voice,
)
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import InputMode, SamplingParams
from vivavoce.errors import InvalidRequest, RequestCancelled

SEAMLESS = [
    ChunkPolicy.low_latency(),
    ChunkPolicy.low_latency(first_hop=6, lookahead=0),
    ChunkPolicy.equal(hop=10),
    ChunkPolicy.equal(hop=8, lookahead=1),
    ChunkPolicy.exponential(),
]


def hops(policy, count, prompt):
    """The chunks of so many tokens that were all there from the start."""
    cut = []
    while True:
        spoken = sum(cut)
        hop = policy.next_hop(len(cut), spoken, count - spoken, prompt, 0.0)
        if count - spoken < hop + max(1, policy.lookahead):
            return [*cut, count - spoken]
        cut.append(hop)


def one_piece(models, request, policy, noise=True):
    """The same blocks of tokens, made into mel at once and vocoded at once."""
    prompt = len(request.conditioning.flow_tokens)
    count, reach = len(request.speech_tokens), models.config.flow.encoder.lookahead
    units = stream_units(prompt, hops(policy, count, prompt), count, policy.lookahead, reach)
    with torch.inference_mode():
        mel = stream_mel(models, request.conditioning, request.speech_tokens, units)
        return vocoded(models.vocoder, mel, request.seed if noise else None)


@pytest.mark.slow
@pytest.mark.parametrize("policy", SEAMLESS)
def test_a_stream_equals_its_whole(models, engine, policy):
    request = given(75, seed=5)
    chunks = list(engine.submit(stream(request, policy=policy)))
    whole = one_piece(models, request, policy)
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert len(chunks) == len(hops(policy, 75, 30))
    # Random weights make this hard: their source is loud and their reach is wide.
    assert relative_error(np.concatenate([chunk.samples for chunk in chunks]), whole) < 0.05


def test_a_stream_equals_its_whole_without_noise_and_prompt(models):
    request = given(60, seed=6, voice=MUTE)
    with running(models, source_noise=False) as engine:
        streamed = joined(engine.submit(stream(request)))
    assert relative_error(streamed, one_piece(models, request, LOW_LATENCY, noise=False)) < 0.05


def test_official_joins_are_heard(models, engine):
    """The quirks are there when asked for: fades that sum to 1.08, a last chunk that attends to all."""
    request = given(60, seed=6)
    official = joined(engine.submit(stream(request, policy=ChunkPolicy.official())))
    assert relative_error(official, one_piece(models, request, LOW_LATENCY)) > 0.3


def test_offline_is_the_plain_way(models, engine):
    request = segment(40, seed=4, speed=1.3)
    plain = plain_speech(models, request)
    spoken = engine.submit(offline(request)).result()
    assert spoken.tokens == (plain.tokens,)
    assert relative_error(spoken.samples, plain.samples) < 0.05


@pytest.mark.parametrize(("policy", "speed"), [(LOW_LATENCY, 1.0), (LOW_LATENCY, 1.3), (ChunkPolicy.official(), 1.3)])
def test_a_causal_stream_is_the_plain_way(models_v3, policy, speed):
    """CosyVoice3's vocoder takes nothing back: with its past kept it says what it does with all of it vocoded again."""
    request = segment(60, seed=6, speed=speed)
    plain = list(plain_stream(models_v3, request, policy))
    with running(models_v3) as engine:
        spoken = [chunk.samples for chunk in engine.submit(stream(request, policy=policy))]
    assert [len(chunk) for chunk in spoken] == [len(chunk) for chunk in plain]
    # By the whole signal: some processors round a handful of loud samples apart by more than `same` allows.
    assert relative_error(np.concatenate(spoken), np.concatenate(plain)) < 0.02


@pytest.mark.parametrize("kind", [offline, stream])
def test_segments_follow_one_another_and_chunks_say_which_they_speak(engine, kind):
    requests = [given(40, seed=1), segment(22, seed=2), given(5, seed=3)]
    handle = engine.submit(kind(*requests))
    chunks = list(handle)
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.segment for chunk in chunks] == sorted(chunk.segment for chunk in chunks)
    for place, request in enumerate(requests):
        spoken = np.concatenate([chunk.samples for chunk in chunks if chunk.segment == place])
        same(spoken, joined(engine.submit(kind(request))))
    assert engine.submit(kind(*requests)).result().segment_samples == (40 * 960, 22 * 960, 5 * 960)


@pytest.mark.parametrize("speed", [0.5, 0.7, 1.3, 2.0])
def test_speed_holds_in_streams(engine, speed):
    request = given(60, speed=speed)
    streamed, whole = (len(joined(engine.submit(kind(request)))) for kind in (stream, offline))
    assert streamed == whole == int(120 / speed) * 480


def test_official_streams_ignore_speed(engine):
    assert len(joined(engine.submit(stream(given(30, speed=1.5), policy=ChunkPolicy.official())))) == 30 * 960


@pytest.mark.parametrize("policy", [ChunkPolicy.official(), LOW_LATENCY, ChunkPolicy.time_based()])
def test_streams_of_any_length_come_out_whole(engine, policy):
    counts = (1, 2, 17, 18, 19, 27, 28, 29)
    handles = [engine.submit(stream(given(count), policy=policy)) for count in counts]
    for count, handle in zip(counts, handles, strict=True):
        samples = joined(handle)
        assert len(samples) == count * 960
        assert np.isfinite(samples).all()


def test_the_first_chunk_comes_before_the_last_token(models):
    """Nothing past what the first chunk needs is decoded before it was handed out."""
    heard = threading.Event()

    def choose(scores, state):
        if int(state.counts.max()) >= LOW_LATENCY.first_hop + LOW_LATENCY.lookahead:
            assert heard.wait(PATIENCE_S), "more tokens are decoded while the first chunk could have been made"
        return scores[:, :6561].argmax(-1)

    with running(models, chooser=choose) as engine:
        chunks = iter(engine.submit(stream(segment(40))))
        next(chunks)
        heard.set()
        assert sum(1 for _ in chunks) == 2  # of the other 25 tokens


@pytest.mark.parametrize("kind", [offline, stream])
@pytest.mark.parametrize(
    ("too_long", "message"),
    [
        (segment(6000), "positions"),
        (given(7471), "more than the 7470 that fit"),
        (given(10, voice=voice(1, prompt=7_495)), "speech tokens"),
    ],
)
def test_what_there_is_no_room_for_is_refused(engine, kind, too_long, message):
    with pytest.raises(InvalidRequest, match=message):
        engine.submit(kind(too_long))


def test_conversion_uses_no_slot(engine):
    before = engine.statistics
    spoken = engine.submit(stream(given(20))).result()
    assert spoken.tokens == (given(20).speech_tokens,)
    assert spoken.timings.started_s is None
    assert spoken.timings.lm_s == 0
    assert engine.statistics.stages[0].batches == before.stages[0].batches


def test_a_voice_is_read_once(models):
    with running(models) as engine:
        for _ in range(3):
            joined(engine.submit(stream(given(5, voice=VOICE))))
        assert engine.statistics.prompt_cache_misses == 1
        assert engine.statistics.prompt_cache_hits == 2


def ends_after_its_seed(scores, state):
    """A chooser: speech of so many tokens as the segment's seed says, then the first stop id."""
    stop = scores[:, 6561:].argmax(-1) + 6561
    return stop.where(state.counts >= state.seeds, scores[:, :6561].argmax(-1))


def of_ratio(ratio, seed):
    """Three text ids, spoken in three times `ratio` tokens at most."""
    return replace(segment(None, seed=seed), sampling=SamplingParams(min_ratio=0, max_ratio=ratio))


@pytest.fixture(scope="module")
def obedient(models):
    with running(models, chooser=ends_after_its_seed) as engine:
        yield engine


def test_segments_are_numbered_as_they_arrive(engine):
    handle = engine.submit(arriving(None, InputMode.SEGMENTS))
    for one in (segment(10), segment(15)):
        handle.text.push(one)
    handle.text.close()
    chunks = list(handle)
    assert {chunk.segment for chunk in chunks} == {0, 1}
    assert (chunks[-1].final, chunks[-1].segment) == (True, 1)


def test_an_empty_last_chunk_has_the_last_segments_place(obedient):
    """The last segment turns out to be empty when all before it was sent."""
    *spoken, last = obedient.submit(stream(given(10), of_ratio(4, seed=0)))
    assert {chunk.segment for chunk in spoken} == {0}
    assert (len(last.samples), last.final, last.segment) == (0, True, 1)


@pytest.mark.parametrize("request_of", [stream, offline])
def test_speech_that_is_ended_at_its_most_tokens_is_cut(obedient, request_of):
    """Twelve tokens at most: who would go on is cut, who ends by itself, or was asked for so many, is not."""
    exact = replace(segment(12, seed=50), sampling=SamplingParams(exact_tokens=12, max_ratio=4))
    requests = [of_ratio(4, seed=50), of_ratio(4, seed=11), exact, given(12)]
    handle = obedient.submit(request_of(*requests))
    spoken = handle.result()
    assert [len(tokens) for tokens in spoken.tokens] == [12, 11, 12, 12]
    assert spoken.cut == (True, False, False, False)
    assert handle.outcome.cut == spoken.cut


def test_arriving_text_is_never_cut(engine):
    handle = engine.submit(arriving(segment(None), InputMode.TOKENS))
    handle.text.close()
    assert handle.result().cut == (False,)


def test_who_cancels_learns_nothing_of_cuts(engine):
    handle = engine.submit(stream(given(30), segment(12)))
    handle.cancel()
    assert handle.outcome.cut == ()
    with pytest.raises(RequestCancelled):
        handle.result()
