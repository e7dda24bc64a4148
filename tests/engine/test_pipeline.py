import numpy as np
import pytest
import torch

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.chunk_speaker import flow_item
from vivavoce.engine.pipeline import Pipeline
from vivavoce.engine.request import SamplingParams, StreamRequest, SynthesisRequest
from vivavoce.engine.vocoder_stage import SourceNoise, vocode
from vivavoce.errors import InvalidRequest

WAVE = 5e-2
"""Parity tolerance of waveforms: rounding of pitch moves the phase of long sums."""


def tokens(count, seed=3):
    return tuple(torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def texts(*sizes):
    return [tuple(range(65, 65 + size)) for size in sizes]


def test_eight_requests_each_as_alone(models, conditioning):
    pipeline = Pipeline(models)
    params = SamplingParams(max_ratio=4.0)
    requests = [
        SynthesisRequest(conditioning, text=text, seed=seed, sampling=params, speed=speed)
        for seed, (text, speed) in enumerate(
            zip(texts(3, 12, 5, 1, 9, 20, 7, 4), [1, 1, 0.8, 1, 1.3, 1, 1, 2], strict=True)
        )
    ]
    together = pipeline.run(requests).utterances
    for request, utterance in zip(requests, together, strict=True):
        (alone,) = pipeline.run([request]).utterances
        assert utterance.tokens == alone.tokens
        torch.testing.assert_close(utterance.mel, alone.mel, atol=1e-4, rtol=0)
        np.testing.assert_allclose(utterance.samples, alone.samples, atol=WAVE)
        assert len(alone.samples) == int(len(alone.mel) / request.speed) * 480


def test_order_survives_bounded_batches(models, conditioning, monkeypatch):
    requests = [SynthesisRequest(conditioning, speech_tokens=tokens(size, seed=size)) for size in (40, 10, 60, 12)]
    whole = Pipeline(models).run(requests).utterances
    monkeypatch.setattr("vivavoce.engine.pipeline.MAX_BATCH_FRAMES", 200)
    for one, other in zip(Pipeline(models).run(requests).utterances, whole, strict=True):
        assert one.tokens == other.tokens
        torch.testing.assert_close(one.mel, other.mel, atol=1e-4, rtol=0)


def test_the_same_seed_gives_the_same_audio(models, conditioning):
    request = SynthesisRequest(conditioning, text=texts(4)[0], seed=11)
    first, second = (Pipeline(models).run([request]).utterances[0] for _ in range(2))
    assert np.array_equal(first.samples, second.samples)


def streamed(pipeline, request, policy=ChunkPolicy.seamless(), pieces=None):
    return list(pipeline.stream(StreamRequest(request, policy, pieces)))


def relative_error(wave, whole):
    return np.sqrt(np.square(wave - whole).mean() / np.square(whole).mean())


@pytest.mark.parametrize("noise", [False, True])
def test_a_stream_equals_its_whole(models, conditioning, noise):
    pipeline = Pipeline(models, source_noise=noise)
    request = SynthesisRequest(conditioning, speech_tokens=tokens(230), seed=5)
    chunks = streamed(pipeline, request)
    joined = np.concatenate([chunk.samples for chunk in chunks])
    with torch.inference_mode():
        mel = models.flow([flow_item(request, request.speech_tokens, True)], True)[0]
        (whole,) = vocode(models.vocoder, [mel], [SourceNoise(5 if noise else None)])
    assert [len(chunk.samples) for chunk in chunks][:2] == [(25 + 20) * 960 - 3840, 50 * 960]
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert joined.shape == whole.shape
    # Random weights make this hard: their source is loud and their reach is wide. Official joins differ by all of it.
    assert relative_error(joined, whole) < 0.05
    official = np.concatenate([chunk.samples for chunk in streamed(pipeline, request, ChunkPolicy.official())])
    assert relative_error(official, whole) > 0.5


@pytest.mark.parametrize("policy", [ChunkPolicy(first_hop=10), ChunkPolicy(max_hop=40), ChunkPolicy(first_hop=50)])
def test_no_seamless_policy_has_seams(models, conditioning, policy):
    request = SynthesisRequest(conditioning, speech_tokens=tokens(160), seed=5)
    joined = np.concatenate([chunk.samples for chunk in streamed(Pipeline(models), request, policy)])
    with torch.inference_mode():
        mel = models.flow([flow_item(request, request.speech_tokens, True)], True)[0]
        (whole,) = vocode(models.vocoder, [mel], [SourceNoise(5)])
    assert relative_error(joined, whole) < 0.06


def test_official_joins_are_louder(models, conditioning):
    """The quirk is there when asked for, and only then: fades that sum to 1.08."""
    pipeline = Pipeline(models, source_noise=False)
    request = SynthesisRequest(conditioning, speech_tokens=tokens(230))
    limit = models.config.vocoder.audio_limit
    official = np.concatenate([chunk.samples for chunk in streamed(pipeline, request, ChunkPolicy.official())])
    seamless = np.concatenate([chunk.samples for chunk in streamed(pipeline, request)])
    assert np.abs(official).max() > limit + 0.01
    assert np.abs(seamless).max() <= limit + 1e-6


@pytest.mark.parametrize("speed", [0.5, 0.7, 1.3, 2.0])
def test_speed_holds_in_streams(models, conditioning, speed):
    pipeline = Pipeline(models)
    request = SynthesisRequest(conditioning, speech_tokens=tokens(150), speed=speed)
    streamed_samples = sum(len(chunk.samples) for chunk in streamed(pipeline, request))
    whole = len(pipeline.run([request]).utterances[0].samples)
    assert abs(streamed_samples - whole) <= 480
    assert abs(whole - 150 * 960 / speed) <= 480


def test_a_stream_that_runs_out_of_room_gives_out_all_it_made(models, conditioning, monkeypatch):
    monkeypatch.setattr("vivavoce.engine.pipeline.MAX_FRAMES", 2 * (30 + 70))
    pipeline = Pipeline(models, sampler=lambda scores, rows, decoded: scores[:, :6561].argmax(-1))
    text = iter([tuple(range(60, 100))])
    stream = pipeline.stream(StreamRequest(SynthesisRequest(conditioning, text=(65,)), ChunkPolicy.seamless(), text))
    heard = []

    def listen():
        for chunk in stream:
            heard.append(len(chunk.samples))

    with pytest.raises(InvalidRequest, match="70 speech tokens"):
        listen()
    assert sum(heard) == 70 * 960


def test_official_streams_ignore_speed(models, conditioning):
    request = SynthesisRequest(conditioning, speech_tokens=tokens(60), speed=1.5)
    assert sum(len(c.samples) for c in streamed(Pipeline(models), request, ChunkPolicy.official())) == 60 * 960


@pytest.mark.parametrize("count", [1, 2, 27, 28, 47, 48, 49])
@pytest.mark.parametrize("policy", [ChunkPolicy.official(), ChunkPolicy.seamless()])
def test_streams_of_any_length_come_out_whole(models, conditioning, count, policy):
    request = SynthesisRequest(conditioning, speech_tokens=tokens(count))
    chunks = streamed(Pipeline(models), request, policy)
    assert sum(len(chunk.samples) for chunk in chunks) == count * 960
    assert all(np.isfinite(chunk.samples).all() for chunk in chunks)


def test_the_first_chunk_comes_before_the_last_token(models, conditioning):
    """A stream is lazy: nothing past what the first chunk needs was decoded."""
    seen = []

    def choose(scores, rows, decoded):
        seen.append(len(decoded[0]))
        return scores[:, :6561].argmax(-1)

    pipeline = Pipeline(models, sampler=choose)
    stream = pipeline.stream(StreamRequest(SynthesisRequest(conditioning, text=texts(10)[0]), ChunkPolicy.seamless()))
    next(stream)
    assert seen[-1] + 1 == 25 + 20 + 3  # hop, alignment of the 30 prompt tokens, lookahead
    stream.close()


def test_text_in_pieces(models, conditioning):
    request = SynthesisRequest(conditioning, text=(65,), sampling=SamplingParams(max_ratio=3.0))
    pieces = [(65, 66), (67, 68, 69, 70), (71,), (72, 73, 74, 75, 76, 77)]
    one = streamed(Pipeline(models), request, pieces=iter(pieces))
    other = streamed(Pipeline(models), request, pieces=iter([tuple(i for piece in pieces for i in piece)]))
    assert np.array_equal(
        np.concatenate([chunk.samples for chunk in one]), np.concatenate([chunk.samples for chunk in other])
    )


@pytest.mark.parametrize("settings", [{"speed": 0.4}, {"speed": 2.1}, {"speed": float("nan")}])
def test_a_speed_outside_its_limits_is_refused(conditioning, settings):
    with pytest.raises(InvalidRequest, match=r"speed: .* is outside of 0\.5 … 2\.0"):
        SynthesisRequest(conditioning, text=(1,), **settings)


@pytest.mark.parametrize(
    ("settings", "field"), [({"top_p": 1.5}, "top_p"), ({"top_k": 0}, "top_k"), ({"min_ratio": 30.0}, "min_ratio")]
)
def test_sampling_outside_its_limits_is_refused(settings, field):
    with pytest.raises(InvalidRequest, match=field):
        SamplingParams(**settings)


def test_nothing_to_speak_is_refused(conditioning):
    with pytest.raises(InvalidRequest, match="text"):
        SynthesisRequest(conditioning)
