"""Token2wav gives what the engine gives, whole and step by step, alone and in company."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vivavoce.doors.triton as triton_door
from tests.doors.triton.fake_backend import FakeBackend, TritonError, initialize_args, output, refused
from tests.doors.triton.token2wav_helpers import (
    BACKEND,
    BARE,
    OTHER,
    SAMPLES_PER_TOKEN,
    TEXT_SIZE,
    VOICE,
    Clock,
    asked,
    drawn,
    engine_wave,
    hops_of,
    made,
    steps,
    voice_tensors,
    waves,
)
from tests.engine.engine_helpers import inject, same
from vivavoce.checkpoint.spk2info import SavedPrompt, SpeakerEntry, read_spk2info, write_spk2info
from vivavoce.doors.triton.models.flow_prompts import PromptReader, default_prompt
from vivavoce.doors.triton.models.token2wav import Token2Wav
from vivavoce.doors.triton.models.token2wav_streams import Bounds
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidRequest
from vivavoce.service.text.tokenizer import TextTokenizer

TOKENS = drawn(48)
HELD = 8 * 480
"""Samples that wait for the next step."""


@pytest.fixture(scope="module")
def model(models):
    return made(models)


def test_whole_is_the_engines_offline(models, model):
    (wave,) = waves(model, asked(TOKENS, VOICE, seed=5))
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
    parts = [waves(model, step)[0] for step in steps(TOKENS, hops, "one", voice=voice, seed=4, speed=speed)]
    assert len(parts) == len(hops) > 1
    assert len(model._streams) == 0
    if speed == 1.0:
        assert [len(part) for part in parts[:-1]] == [
            hop * SAMPLES_PER_TOKEN - (HELD if number == 0 else 0) for number, hop in enumerate(hops[:-1])
        ]
    same(np.concatenate(parts), engine_wave(models, TOKENS, voice, policy, seed=4, speed=speed), atol=1e-3)


def test_a_stream_may_have_one_step(models, model):
    (wave,) = waves(model, asked(TOKENS[:9], VOICE, name="short", offset=0, last=True))
    same(wave, engine_wave(models, TOKENS[:9], VOICE, ChunkPolicy.exponential()), atol=1e-3)


def test_later_steps_may_leave_out_what_the_first_brought(model):
    told = [waves(model, step)[0] for step in steps(TOKENS, [15, 21, 12], "told", voice=VOICE, seed=2)]
    first, *_ = steps(TOKENS, [15, 21, 12], "left out", voice=VOICE, seed=2)
    _, *later = steps(TOKENS, [15, 21, 12], "left out", voice=None)
    for wave, step in zip(told, [first, *later], strict=True):
        same(waves(model, step)[0], wave, atol=0)


def test_without_state_a_stream_is_the_same(models, model):
    poor = made(models, state_bytes=0)
    for one, other in zip(steps(TOKENS, [15, 21, 12], "s"), steps(TOKENS, [15, 21, 12], "s"), strict=True):
        same(waves(model, one)[0], waves(poor, other)[0])


def test_company_changes_nothing(models, model):
    """Whole ones and steps of many streams at all their places, in batches of all of them."""
    cast = {
        "a": (drawn(30, 1), [7, 13, 10], {"voice": VOICE, "seed": 1}),
        "b": (drawn(22, 2), [9, 4, 9], {"voice": VOICE, "seed": 2}),
        "c": (drawn(20, 3), [5, 5, 10], {"voice": BARE, "seed": 3, "speed": 1.3}),
    }
    alone = {name: [waves(model, step)[0] for step in steps(t, h, name, **g)] for name, (t, h, g) in cast.items()}
    whole = asked(drawn(20, 4), OTHER, seed=4)
    whole_alone = waves(model, whole)[0]
    together = {name: list(steps(t, h, name, **g)) for name, (t, h, g) in cast.items()}
    for number in range(3):
        *parts, last = waves(model, *(together[name][number] for name in cast), whole)
        for name, part in zip(cast, parts, strict=True):
            same(part, alone[name][number])
        same(last, whole_alone)
    assert len(model._streams) == 0


def test_all_of_a_call_is_one_batch(models, monkeypatch):
    model = made(models)
    flows = inject(monkeypatch, model._synthesis._flow, "start", RuntimeError(), lambda *_: False)
    vocoders = inject(monkeypatch, model._synthesis._vocoder, "run", RuntimeError(), lambda *_: False)
    waves(model, *(asked(drawn(10 + seed, seed), BARE, seed=seed) for seed in range(5)))
    assert (flows.calls, vocoders.calls) == (1, 1)
    waves(model, *(next(steps(drawn(20, seed), [9, 11], str(seed), voice=VOICE)) for seed in range(5)))
    assert (flows.calls, vocoders.calls) == (3, 2)  # the voice, and the chunks
    model.close()
    assert len(model._streams) == 0


def test_two_steps_of_one_stream_in_a_call(model):
    told = [waves(model, step)[0] for step in steps(TOKENS, [15, 21, 12], "x")]
    for wave, other in zip(waves(model, *steps(TOKENS, [15, 21, 12], "y")), told, strict=True):
        same(wave, other, atol=0)


def test_a_refused_request_harms_no_other(model):
    (alone,) = waves(model, asked(TOKENS, VOICE))
    bad = asked(TOKENS, VOICE, seed=-1)
    good, refusal, good_step = model.execute(
        [asked(TOKENS, VOICE), bad, next(steps(TOKENS, [20, 28], "beside", voice=VOICE))]
    )
    same(output(good, "waveform")[0], alone)
    assert "seed: -1" in refused(refusal)
    assert output(good_step, "waveform").shape == (1, 20 * SAMPLES_PER_TOKEN - HELD)
    model.close()


def test_who_cannot_be_computed_fails_alone(models, monkeypatch, caplog):
    model = made(models)
    wanted = [asked(drawn(count, count), BARE) for count in (10, 11, 12)]
    alone = [waves(model, one)[0] for one in wanted]
    inject(
        monkeypatch,
        model._synthesis._flow,
        "start",
        RuntimeError("a defect"),
        lambda _, work: any(len(one.tokens) == 11 for one in work),
    )
    first, second, third = model.execute(wanted)
    assert "RuntimeError" in refused(second, TritonError.INTERNAL)
    assert "a defect" in caplog.text
    same(output(first, "waveform")[0], alone[0])
    same(output(third, "waveform")[0], alone[2])


def test_without_memory_a_batch_is_halved(models, monkeypatch):
    model = made(models)
    wanted = [asked(drawn(count, count), BARE) for count in (10, 11, 12, 13)]
    alone = [waves(model, one)[0] for one in wanted]
    error = RuntimeError("can't allocate memory: you tried to allocate 99 bytes")
    inject(monkeypatch, model._synthesis._vocoder, "run", error, lambda _, pieces: len(pieces) > 1)
    for wave, other in zip(waves(model, *wanted), alone, strict=True):
        same(wave, other)


def test_a_stream_that_fails_is_freed(models, monkeypatch):
    model = made(models)
    first, second, third = steps(TOKENS, [15, 21, 12], "s", voice=VOICE)
    waves(model, first)
    with monkeypatch.context() as patch:
        inject(patch, model._synthesis._vocoder, "run", RuntimeError("a defect"))
        refused(model.execute([second])[0], TritonError.INTERNAL)
    assert len(model._streams) == 0
    assert not model._synthesis._flow._streams
    assert "request id 's' has no stream here" in refused(model.execute([third])[0])


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (asked(()), "target_speech_tokens: is empty"),
        (asked((6561,)), f"target_speech_tokens: id {6561 + TEXT_SIZE} is no speech token's; they are 300 … 6860"),
        (asked((-1,)), "target_speech_tokens: id 299 is no speech token's"),
        (asked(drawn(7471)), "target_speech_tokens: 7471; beside a prompt of 30 there is room for 7470"),
        (asked(TOKENS, speed=3.0), "speed: 3.0 is outside of 0.5 … 2.0"),
        (asked(TOKENS, seed=-7), "seed: -7 is no whole number in 0"),
        (asked(TOKENS, None), "prompt_speech_feat: is missing, and the model has no spk2info.pt"),
        (asked(TOKENS, offset=0, last=True), "request id: is empty"),
        (asked(TOKENS, name="n", offset=0), "finalize: is missing beside token_offset"),
        (asked(TOKENS, name="n", last=False), "token_offset: is missing beside finalize"),
        (asked(TOKENS, name="n", offset=-1, last=False), "token_offset: -1 is below 0"),
        (asked(TOKENS, name="n", offset=15, last=False), "request id 'n' has no stream here"),
        (asked(TOKENS[:3], name="n", offset=0, last=False), "3 in a step from 0, which needs 4 or more, the last 3"),
    ],
)
def test_refusals(model, request_, sentence):
    assert sentence in refused(model.execute([request_])[0])
    assert len(model._streams) == 0
    assert not model._synthesis._flow._streams


def without(voice, *names):
    return {name: tensor for name, tensor in voice_tensors(voice).items() if name not in names}


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (without(VOICE, "prompt_spk_embedding"), "prompt_spk_embedding: is missing"),
        (without(VOICE, "prompt_speech_feat"), "prompt_speech_feat: is missing beside prompt_speech_tokens"),
        (without(VOICE, "prompt_speech_tokens"), "prompt_speech_tokens: is missing beside prompt_speech_feat"),
        (
            {**voice_tensors(VOICE), "prompt_speech_feat": np.zeros((1, 59, 80), np.float16)},
            "prompt_speech_feat: 4720 numbers for 30 of prompt_speech_tokens; send 2 frames of 80 for each, 60 frames",
        ),
        (
            {**voice_tensors(VOICE), "prompt_speech_tokens": np.zeros((1, 30), np.int32)},
            "prompt_speech_tokens: id 0 is no speech token's",
        ),
        (
            {**voice_tensors(VOICE), "prompt_speech_tokens": np.full((1, 751), TEXT_SIZE, np.int32)},
            "prompt_speech_tokens: 751 of them; the limit is 750, 30 s",
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
    assert sentence in refused(model.execute([request])[0])


def test_a_missing_tensor_is_named(model):
    assert "target_speech_tokens: is missing" in refused(model.execute([BACKEND.request()])[0])


def test_steps_that_do_not_follow_change_nothing(model):
    hops = [15, 21, 12]
    told = [waves(model, step)[0] for step in steps(TOKENS, hops, "told", voice=VOICE)]
    first, second, third = steps(TOKENS, hops, "s", voice=VOICE)
    same(waves(model, first)[0], told[0], atol=0)
    changed = (TOKENS[0] + 1, *TOKENS[1:])
    wrong = {
        "token_offset: the step from 0 of request id 's' was made already, its audio is given up to token 15": first,
        "token_offset: 36 leaves out tokens": third,
        "do not begin with the 18 of the step before": asked(changed, name="s", offset=15, last=False),
        "do not begin with the 18": asked(TOKENS[:17], name="s", offset=15, last=True),
        "18 in a step from 15, which needs 19 or more": asked(TOKENS[:18], name="s", offset=15, last=False),
        "prompt: is another voice": asked(TOKENS, OTHER, name="s", offset=15, last=False),
        "seed: 1 where the stream began with 0": asked(TOKENS, name="s", offset=15, last=False, seed=1),
        "speed: 1.5 where the stream began with 1.0": asked(TOKENS, name="s", offset=15, last=False, speed=1.5),
    }
    for sentence, request in wrong.items():
        assert sentence in refused(model.execute([request])[0])
    same(waves(model, second)[0], told[1], atol=0)
    same(waves(model, third)[0], told[2], atol=0)
    assert "has no stream here" in refused(model.execute([third])[0])


def test_a_stream_can_be_given_up(model):
    waves(model, next(steps(TOKENS, [15, 33], "left", voice=VOICE)))
    assert len(model._streams) == 1
    for _ in range(2):
        (wave,) = waves(model, asked((), None, name="left", offset=15, last=True))
        assert len(wave) == 0
        assert len(model._streams) == 0
        assert not model._synthesis._flow._streams


def test_who_has_gone_is_not_spoken_to(model):
    request = asked(TOKENS)
    request.leave()
    assert "left" in refused(model.execute([request])[0], TritonError.CANCELLED)


def test_idle_streams_are_dropped(models):
    clock = Clock()
    model = made(models, bounds=Bounds(idle_s=60.0), clock=clock)
    streams = {name: list(steps(TOKENS, [15, 21, 12], name, voice=VOICE)) for name in "ab"}
    waves(model, streams["a"][0])
    clock.now += 50
    waves(model, streams["b"][0])
    clock.now += 20
    assert "was idle for 60 s" in refused(model.execute([streams["a"][1]])[0])
    waves(model, streams["b"][1])
    clock.now += 61
    waves(model, asked(TOKENS, BARE))
    assert len(model._streams) == 0
    assert model._streams.nbytes == 0
    assert model._synthesis._flow.balanced()


@pytest.mark.parametrize("bounds", [Bounds(streams=2), Bounds(nbytes=300_000)])
def test_streams_are_bounded(models, bounds):
    """Of this voice each keeps about 120 kB."""
    clock = Clock()
    model = made(models, bounds=bounds, clock=clock)
    begun = [list(steps(TOKENS, [15, 33], name, voice=VOICE)) for name in "abc"]
    first, second, third = model.execute([stream[0] for stream in begun])
    assert not first.has_error()
    assert not second.has_error()
    assert "2 streams keep" in (sentence := refused(third, TritonError.UNAVAILABLE))
    assert "come again in 300 s" in sentence
    assert len(model._streams) == 2
    waves(model, begun[0][1])
    waves(model, begun[2][0])
    clock.now += 301
    model.execute([])
    assert (len(model._streams), model._streams.nbytes) == (0, 0)


def test_the_last_voices_are_remembered(models):
    reader = PromptReader(models.config, TEXT_SIZE)

    def read(voice):
        return reader.read(BACKEND, BACKEND.request(**voice_tensors(voice)))

    first = read(VOICE)
    assert read(VOICE) is first
    assert read(OTHER).key != first.key
    for number in range(64):
        read(Conditioning(torch.full((192,), float(number))))
    again = read(VOICE)
    assert again is not first
    assert again.key == first.key
    assert len(reader._known) == 64


def speaker(voice):
    ids = voice.flow_tokens.int()
    return SpeakerEntry(voice.embedding, SavedPrompt(torch.tensor([1], dtype=torch.int32), ids, ids, voice.flow_mel))


def test_the_default_voice_is_the_folders(babble, models, tmp_path):
    config = models.config
    speakers = {"other": speaker(OTHER), "001": speaker(VOICE), "plain": SpeakerEntry(BARE.embedding)}
    write_spk2info(tmp_path / "spk2info.pt", speakers)
    for name, voice in (("", VOICE), ("other", OTHER), ("plain", BARE)):
        chosen = default_prompt(tmp_path, config, name).conditioning
        assert chosen.flow_prompt == voice.flow_prompt
        assert torch.equal(chosen.flow_mel, voice.flow_mel)
        assert torch.equal(chosen.embedding, voice.embedding)
    del speakers["001"]
    write_spk2info(tmp_path / "spk2info.pt", speakers)
    assert default_prompt(tmp_path, config, "").conditioning.flow_prompt == OTHER.flow_prompt
    assert default_prompt(tmp_path, config, "stored by a user") is None
    (tmp_path / "spk2info.pt").unlink()
    assert default_prompt(tmp_path, config, "") is None


def test_the_default_voice_speaks_where_none_is_brought(models, model):
    given, default = waves(model, asked(TOKENS, OTHER))[0], made(models, OTHER)
    same(waves(default, asked(TOKENS, None))[0], given, atol=1e-4)
    first, *later = steps(TOKENS, [15, 33], "s", voice=None)
    waves(default, first)
    assert "another voice" in refused(default.execute([asked(TOKENS, OTHER, name="s", offset=15, last=True)])[0])
    waves(default, *later)


def test_the_models_file_serves(babble, monkeypatch):
    backend = FakeBackend()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    path = Path(triton_door.__file__).parent / "repository" / "token2wav" / "1" / "model.py"
    spec = importlib.util.spec_from_file_location("token2wav_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    served = module.TritonPythonModel()
    served.initialize(initialize_args({"model_dir": str(babble), "device": "cpu"}))
    first = next(iter(read_spk2info(babble / "spk2info.pt").values()))
    text_size = len(TextTokenizer.from_folder(babble / "CosyVoice-BlankEN"))
    tokens = np.array(TOKENS, np.int32)[None] + np.int32(text_size)
    embedding = first.embedding.numpy()[None]
    default, given = served.execute(
        [
            backend.request(target_speech_tokens=tokens),
            backend.request(target_speech_tokens=tokens, prompt_spk_embedding=embedding),
        ]
    )
    same(output(default, "waveform")[0], output(given, "waveform")[0])
    served.finalize()


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [({"memory_gb": "much"}, "memory_gb: 'much'"), ({"device": "abacus"}, "device: 'abacus'")],
)
def test_wrong_parameters_are_named(babble, parameters, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        Token2Wav.load(initialize_args({"model_dir": str(babble), **parameters}), BACKEND)
