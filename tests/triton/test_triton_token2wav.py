"""Token2wav gives what the engine gives, whole and step by step, alone and in company."""

import numpy as np
import pytest
import torch
from fake_backend import FakeBackend, TritonError, initialize_args, output, refused

from tests.engine.engine_helpers import assert_clean, inject, joined, running, same
from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, write_spk2info
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import Conditioning, EngineRequest, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest
from vivavoce_triton.models.backend import Inputs, Parameters
from vivavoce_triton.models.token2wav import Bounds, RequestReader, Token2Wav, default_prompt

TEXT_SIZE, LOOKAHEAD, SAMPLES_PER_TOKEN = 300, 3, 960
"""Where speech begins in the merged vocabulary: merged and plain ids overlap, as in all small models."""
HELD = 8 * 480
"""Samples that wait for the next step."""
BACKEND = FakeBackend()


def random_voice(seed, prompt):
    """Of features that lose nothing on their way in FP16."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 6561, (prompt,), generator=generator)
    embedding = torch.randn(192, generator=generator).half().float()
    mel = torch.randn(2 * prompt, 80, generator=generator).half().float() if prompt else torch.zeros(0, 0)
    return Conditioning(embedding, flow_tokens=tokens, flow_mel=mel)


def drawn(count, seed=3):
    """Random speech tokens."""
    return tuple(torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


VOICE, OTHER, BARE = random_voice(7, 30), random_voice(8, 21), random_voice(9, 0)
"""Two with a prompt; one without."""
TOKENS, HOPS = drawn(48), [15, 21, 12]


def made(models, default=None, *, state_bytes=64 << 20, **options):
    """The model, without a server."""
    settings = EngineSettings(state_bytes=state_bytes, admission=AdmissionMode.ALL)
    return Token2Wav(BACKEND, Engine(models, settings), TEXT_SIZE, default, **options)


@pytest.fixture(scope="module")
def model(models):
    return made(models)


def merged(tokens):
    return np.array(tokens, np.int32)[None] + np.int32(TEXT_SIZE)


def voice_tensors(voice, *without):
    tensors = {"prompt_spk_embedding": voice.embedding.numpy().astype(np.float16)[None]}
    if len(voice.flow_tokens):
        tensors["prompt_speech_tokens"] = merged(voice.flow_tokens.tolist())
        tensors["prompt_speech_feat"] = voice.flow_mel.numpy().astype(np.float16)[None]
    return {name: tensor for name, tensor in tensors.items() if name not in without}


def asked(tokens, voice=VOICE, *, name="", **numbers):
    """A request as a client sends it; numbers of a step have the batch dimension only."""
    tensors = {"target_speech_tokens": merged(tokens), **({} if voice is None else voice_tensors(voice))}
    for key, tensor, dtype in (
        ("offset", "token_offset", np.int32),
        ("last", "finalize", np.bool_),
        ("seed", "seed", np.int64),
        ("speed", "speed", np.float32),
    ):
        if key in numbers:
            tensors[tensor] = np.array([numbers[key]], dtype).reshape((1,) if key in ("offset", "last") else (1, 1))
    return BACKEND.request(name, **tensors)


def steps(tokens, hops, name, **given):
    """The requests of a stream that is cut like this."""
    spoken = 0
    for number, hop in enumerate(hops):
        last = number == len(hops) - 1
        there = tokens if last else tokens[: spoken + hop + LOOKAHEAD]
        yield asked(there, name=name, offset=spoken, last=last, **given)
        spoken += hop


def hops_of(policy, count, prompt=30):
    """The chunks of so many tokens that were all there from the start."""
    cut = []
    while True:
        spoken = sum(cut)
        hop = policy.next_hop(len(cut), spoken, count - spoken, prompt, 0.0)
        if count - spoken < hop + LOOKAHEAD:
            return [*cut, count - spoken]
        cut.append(hop)


def waves(model, *requests):
    """Waveforms [n] of a batch of which none is refused."""
    answers = [output(response, "waveform") for response in model.execute(requests)]
    assert all(wave.dtype == np.float32 and wave.shape == (1, wave.size) for wave in answers)
    return [wave[0] for wave in answers]


def streamed(model, requests):
    """One call a step: [n] each."""
    return [waves(model, request)[0] for request in requests]


def refusal(model, request, code=TritonError.INVALID_ARG):
    (response,) = model.execute([request])
    return refused(response, code)


def engine_wave(models, tokens, voice, policy=None, **numbers):
    """What the engine makes of the same: whole, or as a stream."""
    request = SegmentRequest(voice, speech_tokens=tuple(tokens), **numbers)
    with running(models) as engine:
        return joined(engine.submit(EngineRequest((request,), policy)))


def test_whole_is_the_engines_offline(models, model):
    (wave,) = waves(model, asked(TOKENS, seed=5))
    assert len(wave) == 48 * SAMPLES_PER_TOKEN
    same(wave, engine_wave(models, TOKENS, VOICE, seed=5), atol=1e-4)


def test_speed_is_the_one_that_was_meant(models, model):
    (wave,) = waves(model, asked(TOKENS, BARE, speed=1.2))
    assert len(wave) == 80 * 480  # FP32 makes 1.2000000477 of it, with which it would be a frame less
    same(wave, engine_wave(models, TOKENS, BARE, speed=1.2), atol=1e-4)


@pytest.mark.parametrize(
    ("policy", "voice", "speed"),
    [
        (ChunkPolicy.exponential(), VOICE, 1.0),
        (ChunkPolicy.equal(hop=25), BARE, 1.0),
        (ChunkPolicy.equal(hop=11), OTHER, 1.3),
    ],
)
def test_steps_are_the_engines_stream(models, model, policy, voice, speed):
    hops = hops_of(policy, len(TOKENS))
    parts = streamed(model, steps(TOKENS, hops, "one", voice=voice, seed=4, speed=speed))
    assert len(parts) == len(hops) > 1
    assert len(model.streams) == 0
    if speed == 1.0:
        assert [len(part) for part in parts[:-1]] == [
            hop * SAMPLES_PER_TOKEN - (HELD if number == 0 else 0) for number, hop in enumerate(hops[:-1])
        ]
    same(np.concatenate(parts), engine_wave(models, TOKENS, voice, policy, seed=4, speed=speed), atol=1e-3)


def test_cosyvoice3_s_steps_are_the_engines_stream(models_v3):
    model, policy = made(models_v3), ChunkPolicy.equal(hop=11)
    first, *later = steps(TOKENS, hops_of(policy, len(TOKENS)), "v3", voice=BARE, seed=4)
    parts = streamed(model, [first])
    assert len(parts[0]) == 11 * SAMPLES_PER_TOKEN - HELD
    assert model.nbytes > 4 * sum(models_v3.vocoder.reach) * (80 + 480)
    parts += streamed(model, later)
    same(np.concatenate(parts), engine_wave(models_v3, TOKENS, BARE, policy, seed=4), atol=1e-3)


def test_later_steps_may_leave_out_what_the_first_brought(model):
    told = streamed(model, steps(TOKENS, HOPS, "told", seed=2))
    first, *_ = steps(TOKENS, HOPS, "left out", seed=2)
    _, *later = steps(TOKENS, HOPS, "left out", voice=None)
    for wave, other in zip(streamed(model, [first, *later]), told, strict=True):
        same(wave, other, atol=0)


def test_without_state_a_stream_is_the_same(models, model):
    told, poor = (streamed(one, steps(TOKENS, HOPS, "s")) for one in (model, made(models, state_bytes=0)))
    for wave, other in zip(poor, told, strict=True):
        same(wave, other)


def test_company_changes_nothing(models, model):
    """Whole ones and steps of many streams at all their places, in batches of all of them."""
    cast = {
        "a": (drawn(30, 1), [7, 13, 10], {"voice": VOICE, "seed": 1}),
        "b": (drawn(22, 2), [9, 4, 9], {"voice": VOICE, "seed": 2}),
        "c": (drawn(20, 3), [5, 5, 10], {"voice": BARE, "seed": 3, "speed": 1.3}),
    }
    alone = {name: streamed(model, steps(t, h, name, **g)) for name, (t, h, g) in cast.items()}
    whole = asked(drawn(20, 4), OTHER, seed=4)
    whole_alone = waves(model, whole)[0]
    together = {name: list(steps(t, h, name, **g)) for name, (t, h, g) in cast.items()}
    for number in range(3):
        *parts, last = waves(model, *(together[name][number] for name in cast), whole)
        for name, part in zip(cast, parts, strict=True):
            same(part, alone[name][number])
        same(last, whole_alone)
    assert len(model.streams) == 0


def test_two_steps_of_one_stream_in_a_call(model):
    told = streamed(model, steps(TOKENS, HOPS, "x"))
    for wave, other in zip(waves(model, *steps(TOKENS, HOPS, "y")), told, strict=True):
        same(wave, other, atol=0)


def test_a_refused_request_harms_no_other(model):
    (alone,) = waves(model, asked(TOKENS))
    step = next(steps(TOKENS, [20, 28], "beside"))
    good, bad, good_step = model.execute([asked(TOKENS), asked(TOKENS, seed=-1), step])
    same(output(good, "waveform")[0], alone)
    assert "seed: -1" in refused(bad)
    assert output(good_step, "waveform").shape == (1, 20 * SAMPLES_PER_TOKEN - HELD)
    waves(model, asked((), None, name="beside", offset=0, last=True))


def test_who_cannot_be_computed_fails_alone(models, monkeypatch, caplog):
    model = made(models)
    wanted = [asked(drawn(count, count), BARE) for count in (10, 11, 12)]
    alone = streamed(model, wanted)

    def is_there(_, work):
        return any(len(one.speech) == 11 for one in work)

    inject(monkeypatch, model.engine.stages.flow, "start", RuntimeError("a defect"), is_there)
    first, second, third = model.execute(wanted)
    assert "RuntimeError" in refused(second, TritonError.INTERNAL)
    assert "a defect" in caplog.text
    same(output(first, "waveform")[0], alone[0])
    same(output(third, "waveform")[0], alone[2])


def test_a_stream_that_fails_is_freed(models, monkeypatch):
    model = made(models)
    first, second, third = steps(TOKENS, HOPS, "s")
    waves(model, first)
    with monkeypatch.context() as patch:
        inject(patch, model.engine.stages.vocoder, "run", RuntimeError("a defect"))
        refusal(model, second, TritonError.INTERNAL)
    assert len(model.streams) == 0
    assert_clean(model.engine)
    assert "request id 's' has no stream here" in refusal(model, third)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (asked(()), "target_speech_tokens: is empty"),
        (asked((6561,)), f"target_speech_tokens: id {6561 + TEXT_SIZE} is not a speech token; they are 300 … 6860"),
        (asked((-1,)), "target_speech_tokens: id 299 is not a speech token"),
        (asked(drawn(7471)), "target_speech_tokens: 7471 tokens; beside a prompt of 30 there is room for 7470"),
        (asked(TOKENS, speed=3.0), "speed: 3.0 is outside of 0.5 … 2.0"),
        (asked(TOKENS, seed=-7), "seed: -7 is not a whole number in 0"),
        (asked(TOKENS, None), "prompt_speech_feat: is missing, and the model has no spk2info.pt"),
        (asked(TOKENS, offset=0, last=True), "request id: is empty"),
        (asked(TOKENS, name="n", offset=0), "finalize: is missing beside token_offset"),
        (asked(TOKENS, name="n", last=False), "token_offset: is missing beside finalize"),
        (asked(TOKENS, name="n", offset=-1, last=False), "token_offset: -1 is below 0"),
        (asked(TOKENS, name="n", offset=15, last=False), "request id 'n' has no stream here"),
        (asked(TOKENS[:3], name="n", offset=0, last=False), "3 tokens were sent, a step that begins at token 0 needs"),
    ],
)
def test_refusals(model, request_, sentence):
    assert sentence in refusal(model, request_)
    assert len(model.streams) == 0
    assert_clean(model.engine)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (voice_tensors(VOICE, "prompt_spk_embedding"), "prompt_spk_embedding: is missing"),
        (voice_tensors(VOICE, "prompt_speech_feat"), "prompt_speech_feat: is missing beside prompt_speech_tokens"),
        (voice_tensors(VOICE, "prompt_speech_tokens"), "prompt_speech_tokens: is missing beside prompt_speech_feat"),
        (
            {**voice_tensors(VOICE), "prompt_speech_feat": np.zeros((1, 59, 80), np.float16)},
            "prompt_speech_feat: has 4720 numbers for 30 prompt tokens; send 2 frames of 80 for each, 60 frames",
        ),
        (
            {**voice_tensors(VOICE), "prompt_speech_tokens": np.zeros((1, 30), np.int32)},
            "prompt_speech_tokens: id 0 is not a speech token",
        ),
        (
            {**voice_tensors(VOICE), "prompt_speech_tokens": np.full((1, 751), TEXT_SIZE, np.int32)},
            "prompt_speech_tokens: has 751 tokens; the limit is 750 (30 s)",
        ),
        ({"prompt_spk_embedding": np.zeros((1, 80), np.float16)}, "prompt_spk_embedding: 80 numbers"),
        (
            {"prompt_spk_embedding": np.full((1, 192), np.nan, np.float16)},
            "prompt_spk_embedding: holds a number that is not finite",
        ),
    ],
)
def test_prompts_are_refused(model, tensors, sentence):
    request = BACKEND.request(target_speech_tokens=np.full((1, 9), TEXT_SIZE, np.int32), **tensors)
    assert sentence in refusal(model, request)


def test_steps_that_do_not_follow_change_nothing(model):
    told = streamed(model, steps(TOKENS, HOPS, "told"))
    first, second, third = steps(TOKENS, HOPS, "s")
    same(waves(model, first)[0], told[0], atol=0)
    changed = (TOKENS[0] + 1, *TOKENS[1:])
    wrong = {
        "token_offset: the step from 0 of request id 's' was made already, its audio is complete up to token 15": first,
        "token_offset: 36 leaves out tokens": third,
        "do not begin with the 18 tokens before": asked(changed, name="s", offset=15, last=False),
        "do not begin with the 18": asked(TOKENS[:17], name="s", offset=15, last=True),
        "begins at token 15 needs at least 19": asked(TOKENS[:18], name="s", offset=15, last=False),
        "prompt: differs from the stream's first step": asked(TOKENS, OTHER, name="s", offset=15, last=False),
        "seed: is 1, but was 0 at first": asked(TOKENS, name="s", offset=15, last=False, seed=1),
        "speed: is 1.5, but was 1.0 at first": asked(TOKENS, name="s", offset=15, last=False, speed=1.5),
    }
    for sentence, request in wrong.items():
        assert sentence in refusal(model, request)
    for wave, other in zip(streamed(model, [second, third]), told[1:], strict=True):
        same(wave, other, atol=0)
    assert "has no stream here" in refusal(model, third)


def test_a_stream_can_be_given_up(model):
    waves(model, next(steps(TOKENS, [15, 33], "left")))
    assert len(model.streams) == 1
    for _ in range(2):
        (wave,) = waves(model, asked((), None, name="left", offset=15, last=True))
        assert len(wave) == 0
        assert len(model.streams) == 0
        assert_clean(model.engine)


def test_who_has_gone_is_not_spoken_to(model):
    request = asked(TOKENS)
    request.leave()
    assert "disconnected" in refusal(model, request, TritonError.CANCELLED)


def test_idle_streams_are_dropped(models):
    now = [1000.0]
    model = made(models, bounds=Bounds(idle_s=60.0), clock=lambda: now[0])
    streams = {name: list(steps(TOKENS, HOPS, name)) for name in "ab"}
    waves(model, streams["a"][0])
    now[0] += 50
    waves(model, streams["b"][0])
    now[0] += 20
    assert "was idle for 60 s" in refusal(model, streams["a"][1])
    waves(model, streams["b"][1])
    now[0] += 61
    waves(model, asked(TOKENS, BARE))
    assert len(model.streams) == 0
    assert model.nbytes == 0
    assert_clean(model.engine)


@pytest.mark.parametrize("bounds", [Bounds(streams=2), Bounds(nbytes=300_000)])
def test_streams_are_bounded(models, bounds):
    """Of this voice each keeps about 120 kB."""
    now = [1000.0]
    model = made(models, bounds=bounds, clock=lambda: now[0])
    begun = [list(steps(TOKENS, [15, 33], name)) for name in "abc"]
    first, second, third = model.execute([stream[0] for stream in begun])
    assert not first.has_error()
    assert not second.has_error()
    assert "2 streams keep" in (sentence := refused(third, TritonError.UNAVAILABLE))
    assert "try again in 300 s" in sentence
    assert len(model.streams) == 2
    waves(model, begun[0][1])
    waves(model, begun[2][0])
    now[0] += 301
    model.execute([])
    assert (len(model.streams), model.nbytes) == (0, 0)


def test_the_last_voices_are_remembered(models):
    reader = RequestReader(models.config, TEXT_SIZE)

    def read(voice):
        return reader.voice(Inputs(BACKEND, BACKEND.request(**voice_tensors(voice))))

    first = read(VOICE)
    assert read(VOICE) is first
    assert read(OTHER) is not first
    for number in range(64):
        read(Conditioning(torch.full((192,), float(number))))
    assert read(VOICE) is not first


def speaker(voice):
    ids = voice.flow_tokens.int()
    return SpeakerEntry(voice.embedding, SavedPrompt(torch.tensor([1], dtype=torch.int32), ids, ids, voice.flow_mel))


def test_the_default_voice_is_the_folders(babble, models, tmp_path):
    config = models.config
    speakers = {"other": speaker(OTHER), "001": speaker(VOICE), "plain": SpeakerEntry(BARE.embedding)}
    write_spk2info(tmp_path / "spk2info.pt", speakers)
    for name, voice in (("", VOICE), ("other", OTHER), ("plain", BARE)):
        chosen = default_prompt(tmp_path, config, name)
        assert chosen.flow_prompt == voice.flow_prompt
        assert torch.equal(chosen.flow_mel, voice.flow_mel)
        assert torch.equal(chosen.embedding, voice.embedding)
    del speakers["001"]
    write_spk2info(tmp_path / "spk2info.pt", speakers)
    assert default_prompt(tmp_path, config, "").flow_prompt == OTHER.flow_prompt
    assert default_prompt(tmp_path, config, "stored by a user") is None
    (tmp_path / "spk2info.pt").unlink()
    assert default_prompt(tmp_path, config, "") is None


def test_the_default_voice_speaks_where_none_is_brought(models, model):
    given, default = waves(model, asked(TOKENS, OTHER))[0], made(models, OTHER)
    same(waves(default, asked(TOKENS, None))[0], given, atol=1e-4)
    first, *later = steps(TOKENS, [15, 33], "s", voice=None)
    waves(default, first)
    assert "differs from the stream" in refusal(default, asked(TOKENS, name="s", offset=15, last=True))
    waves(default, *later)


def test_wrong_parameters_are_named(babble):
    with pytest.raises(InvalidRequest, match="memory_gb: 'much'"):
        Token2Wav.load(Parameters(initialize_args({"model_dir": str(babble), "memory_gb": "much"})), BACKEND)
