"""The models of the later layouts, each by itself: mels and their audio, recordings and new tokens, an endpoint."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_backend import FakeBackend, initialize_args, output, refused, unary
from fake_endpoint import said, serving
from speaking_helpers import RATE, alike, hum

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import Conditioning, EngineRequest, SegmentRequest
from vivavoce.errors import EngineStopped, StageFailed, UnsupportedModel
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.modes import CONVERSION, condition
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_triton.models import inner_models
from vivavoce_triton.models.backend import Parameters
from vivavoce_triton.models.inner_models import EndpointLanguageModel, output_length
from vivavoce_triton.models.other_layouts import MelVocoder, Token2Mel, Token2WavDit
from vivavoce_triton.models.reference_models import AudioTokenizer, SpeakerEmbedding

BACKEND = FakeBackend()
TOKENS = torch.randint(0, 6_561, (48,), generator=torch.Generator().manual_seed(3)).tolist()
HOP, LOOKAHEAD, FRAME = 15, 3, 480
RECORDING = hum(1.0)


def load(kind, folder, backend=BACKEND):
    return kind.load(Parameters(initialize_args({"model_dir": str(folder), "device": "cpu"})), backend)


def ask(model, name, request_id="", **tensors):
    """The output of a request that is not refused, without its batch dimension."""
    [answer] = model.execute([BACKEND.request(request_id, **tensors)])
    return output(answer, name)[0]


def ids(tokens, first=0):
    return np.array([tokens], np.int32) + np.int32(first)


def flag(value):
    return np.array([value])


@pytest.fixture(scope="module")
def token2mel(babble_v3):
    with closing(load(Token2Mel, babble_v3)) as model:
        yield model


@pytest.fixture(scope="module")
def vocoder(babble_v3):
    with closing(load(MelVocoder, babble_v3)) as model:
        yield model


def cuts():
    """Where the steps of an even stream begin and end, lookahead included, and whether it is the last."""
    starts = range(0, len(TOKENS) - HOP - LOOKAHEAD + 1, HOP)
    yield from ((start, start + HOP + LOOKAHEAD, False) for start in starts)
    yield starts[-1] + HOP, len(TOKENS), True


def test_steps_have_all_frames_of_their_tokens(token2mel):
    """As the original's, whose steps are cut at `token_offset`: two frames a token, none held back."""
    mels = []
    for offset, end, last in cuts():
        step = {"token_offset": np.array([offset], np.int32), "finalize": flag(last)}
        mels.append(ask(token2mel, "mel", "one", target_speech_tokens=ids(TOKENS[:end]), **step))
    assert [mel.shape for mel in mels] == [(80, 2 * HOP)] * 3 + [(80, 2 * (len(TOKENS) - 3 * HOP))]
    assert len(token2mel.streams) == 0
    whole = ask(token2mel, "mel", target_speech_tokens=ids(TOKENS))
    assert whole.shape == (80, 2 * len(TOKENS))
    assert np.isfinite(whole).all()
    slow = ask(token2mel, "mel", target_speech_tokens=ids(TOKENS), speed=np.array([[0.5]], np.float32))
    assert slow.shape == (80, 4 * len(TOKENS))
    [answer] = token2mel.execute([BACKEND.request(target_speech_tokens=ids([6_561]))])
    assert "target_speech_tokens: id 6561 is not a speech token; they are 0 … 6560" in refused(answer)


def test_what_the_vocoder_gave_once_stays_the_same(token2mel, vocoder):
    mel = ask(token2mel, "mel", target_speech_tokens=ids(TOKENS))[None]
    given = {"seed": np.array([[7]], np.int64)}
    whole = ask(vocoder, "tts_speech", mel=mel, finalize=flag(True), **given)
    assert whole.shape == (mel.shape[2] * FRAME,)
    for frames in (9, 40, 80):
        part = ask(vocoder, "tts_speech", mel=mel[..., :frames], finalize=flag(False), **given)
        assert part.shape == ((frames - 8) * FRAME,)
        assert alike(part, whole[: len(part)])
    assert ask(vocoder, "tts_speech", mel=mel[..., :8], finalize=flag(False)).size == 0
    assert not alike(ask(vocoder, "tts_speech", mel=mel, finalize=flag(True)), whole), "another seed, other noise"


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"finalize": flag(True)}, "mel: is missing; send both"),
        ({"mel": np.zeros((1, 80, 9), np.float32)}, "finalize: is missing; send both"),
        ({"mel": np.zeros((1, 9, 80), np.float32), "finalize": flag(True)}, "mel: is 1 × 9 × 80; send 80 × frames"),
        ({"mel": np.zeros((1, 80, 0), np.float32), "finalize": flag(True)}, "mel: is 1 × 80 × 0; send"),
        ({"mel": np.zeros((1, 80, 15_001), np.float32), "finalize": flag(True)}, "with 1 … 15000 frames"),
        ({"mel": np.full((1, 80, 9), np.nan, np.float32), "finalize": flag(True)}, "mel: holds a number that is not"),
        (
            {"mel": np.zeros((1, 80, 9), np.float32), "finalize": flag(True), "seed": np.array([[-1]])},
            "seed: -1 is not a whole number",
        ),
    ],
)
def test_mels_that_cannot_be(vocoder, tensors, sentence):
    [bad, good] = vocoder.execute(
        [BACKEND.request(**tensors), BACKEND.request(mel=np.zeros((1, 80, 9), np.float32), finalize=flag(True))]
    )
    assert sentence in refused(bad)
    assert output(good, "tts_speech").shape == (1, 9 * FRAME)


@pytest.mark.parametrize(
    ("kind", "folder"), [(Token2Mel, "babble"), (MelVocoder, "babble"), (Token2WavDit, "babble_v3")]
)
def test_a_layout_s_models_refuse_another_generation(request, kind, folder):
    with pytest.raises(UnsupportedModel, match="layout"):
        load(kind, request.getfixturevalue(folder))


def test_a_recording_and_new_tokens_alone(babble, synthesizer, vocabulary):
    """What the original's `cosyvoice2_dit` sends: the padded recording with every step, and the tokens of that step."""
    readers = {"audio_tokenizer": AudioTokenizer, "speaker_embedding": SpeakerEmbedding}
    backend = FakeBackend({name: unary(load(kind, babble)) for name, kind in readers.items()})
    prompt = {
        "reference_wav": np.pad(RECORDING, (0, 9 * RATE))[None],
        "reference_wav_len": np.array([[RATE]], np.int32),
    }
    voice = synthesizer.front_end.extractor.extract(Audio(RECORDING, RATE)).aligned(synthesizer.front_end.config.rates)
    conditioning = condition(replace(voice, embedding=voice.embedding.half().float()), CONVERSION)
    segment, merged = SegmentRequest(conditioning, speech_tokens=tuple(TOKENS)), ids(TOKENS, vocabulary.text_size)
    own = [EngineRequest((segment,), policy) for policy in (None, ChunkPolicy.equal(hop=HOP))]
    whole, stream = (synthesizer.engine.submit(request).result().samples for request in own)
    with closing(load(Token2WavDit, babble, backend)) as dit:
        assert alike(ask(dit, "waveform", target_speech_tokens=merged, **prompt), whole)
        heard = [
            ask(dit, "waveform", "uuid", target_speech_tokens=merged[:, start:end], finalize=flag(last), **prompt)
            for start, end, last in cuts()
        ]
        assert alike(np.concatenate(heard), stream)
        assert len(dit.streams) == 0
        assert len(backend.asked) == 2, "the recording is encoded once"
        [answer] = dit.execute([BACKEND.request(target_speech_tokens=merged, finalize=flag(True), **prompt)])
        assert "request id: is empty" in refused(answer)
        prompt["reference_wav_len"][:] = 0
        [answer] = dit.execute([BACKEND.request("x", target_speech_tokens=merged, **prompt)])
        assert "reference_wav_len: 0 is outside of 1 …" in refused(answer)


DONE = "data: [DONE]"


@pytest.fixture(scope="module")
def segment(babble_v3):
    """A text, after a transcript and a system prompt, in a voice whose recording says two tokens."""
    encode = TextTokenizer.from_folder(babble_v3 / BACKBONE).encode
    voice = Conditioning(
        torch.zeros(192),
        encode("Hm. "),
        (5, 6_560),
        lm_system_text=encode("You are a helpful assistant.<|endofprompt|>"),
    )
    return SegmentRequest(voice, text=encode("Good morning."), seed=9)


@pytest.fixture
def tokens_of(babble_v3, segment):
    def tokens(server):
        model = EndpointLanguageModel(server.address, "speech", TextTokenizer.from_folder(babble_v3 / BACKBONE), 6_561)
        with closing(model):
            return list(model.tokens(segment))

    return tokens


def test_an_endpoint_is_asked_as_the_original_asks_it(tokens_of, segment):
    lines = [said(""), said("<|s_1|><|s_2|><|s"), said("_30|>"), ": a comment", said(None), said("<|s_0|>"), DONE]
    with serving(lines) as server:
        assert tokens_of(server) == [(1, 2), (30,), (0,)]
    least, most = output_length(segment)
    assert server.asked == [
        (
            "/v1/chat/completions",
            {
                "model": "speech",
                "messages": [
                    {"role": "user", "content": "You are a helpful assistant.<|endofprompt|>Hm. Good morning."},
                    {"role": "assistant", "content": "<|s_5|><|s_6560|>"},
                ],
                "max_tokens": most,
                "min_tokens": least,
                "temperature": 0.8,
                "top_p": 0.95,
                "top_k": 50,
                "repetition_penalty": 1.1,
                "seed": 9,
                "stop": ["<|eos1|>", "<|eos|>"],
                "stream": True,
            },
        )
    ]


def test_speech_ends_where_the_model_s_ids_end_and_at_the_limit(tokens_of, segment):
    with serving([said("<|s_4|><|s_6562|><|s_5|>"), said("<|s_6|>")]) as server:
        assert tokens_of(server) == [(4,)]
    most = output_length(segment)[1]
    with serving(said("<|s_7|>" * 3) for _ in range(10**6)) as server:
        assert sum(map(len, tokens_of(server))) == most
        assert server.left.wait(50), "the endpoint is left when there is enough"


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        ([], 503, "endpoint answered with HTTP 503; its log"),
        ([said("Of course! " * 99)], 200, r"sent text, not speech tokens such as <\|s_12\|>; serve the folder"),
        (["data: {"], 200, "sent a line that does not belong to a chat completion"),
        (['data: {"choices": [7]}'], 200, "sent a line that does not belong to a chat completion"),
        ([said("<|s_1|>"), 'data: {"error": {"message": "out of memory"}}'], 200, "broke off with an error"),
    ],
)
def test_an_endpoint_that_gives_no_speech(tokens_of, lines, status, message):
    with serving(lines, status=status) as server, pytest.raises(StageFailed, match=message):
        tokens_of(server)


def test_an_endpoint_that_is_away_or_falls_silent(tokens_of, monkeypatch):
    with serving([]) as server:
        pass
    with pytest.raises(
        EngineStopped, match=r"llm_api_base: the language model's endpoint cannot be reached \(ConnectError\)"
    ):
        tokens_of(server)
    monkeypatch.setattr(inner_models, "SILENCE_S", 0.05)
    gate = threading.Event()

    def slow():
        yield said("<|s_1|>")
        gate.wait(50)

    with serving(slow()) as server:
        with pytest.raises(EngineStopped, match="ReadTimeout"):
            tokens_of(server)
        gate.set()
