"""A real tritonserver on the whole repository, with the tiny random model: every model, many users, faults, memory."""

from __future__ import annotations

import asyncio
import json
import queue
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpc
from fake_backend import PATIENCE_S
from fake_endpoint import said, serving
from speaking_helpers import RATE, alike, hum, near
from tritonclient.utils import InferenceServerException

from tests.soak.served import LONG_TEXT, SPEAKING, served, soak_server
from vivavoce.api import Vivavoce
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import AudioChunk, EngineRequest, SamplingParams, SegmentRequest
from vivavoce.frontend.audio.encode import write_audio
from vivavoce.frontend.audio.samples import Audio
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.speech import FinishReason, SegmentText, SpeakOptions, SpeechRequest
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce_triton.model_repository import ModelSet
from vivavoce_triton.models.inner_models import TOP_K, TOP_P
from vivavoce_triton.upstream.triton_backend import TritonBackend

pytestmark = pytest.mark.process

USERS = 8
LEAVING = 12
SOAK = 40
TYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "bool": "BOOL", "object": "BYTES"}


def inputs(tensors):
    """Strings, numbers and arrays, each with the batch dimension of one utterance."""
    made = []
    for name, value in tensors.items():
        value = np.array([value.encode()], dtype=object) if isinstance(value, str) else np.atleast_1d(value)
        made.append(grpc.InferInput(name, [1, *value.shape], TYPES[value.dtype.name]))
        made[-1].set_data_from_numpy(value[None])
    return made


@contextmanager
def stream(server, model, **tensors):
    """The chunks of a request as they come; leaving the context leaves the server, finished or not."""
    answers, ended = queue.Queue(), False

    def chunks():
        nonlocal ended
        while not ended:
            result, error = answers.get(timeout=PATIENCE_S)
            ended = error is not None or result.get_response().parameters["triton_final_response"].bool_param
            if error is not None:
                raise error
            samples = result.as_numpy("waveform")
            if samples is not None and samples.size:
                yield samples.reshape(-1)

    client = grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        client.async_stream_infer(model, inputs(tensors), enable_empty_final_response=True)
        yield chunks()
    finally:
        # The server keeps a request whose call is cancelled in the moment in which it ends; see Connection.speak.
        client.stop_stream(cancel_requests=not ended)
        client.close()


def streamed(server, model, **tensors):
    """All audio of one stream."""
    with stream(server, model, **tensors) as chunks:
        return np.concatenate(list(chunks))


def infer(server, model, output, **tensors):
    """One answer of a model that is not decoupled."""
    with grpc.InferenceServerClient(server.grpc_url) as client:
        return client.infer(model, inputs(tensors), client_timeout=PATIENCE_S).as_numpy(output)[0]


def get(url):
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.read().decode()


def counts(server):
    """Requests that each model has answered."""
    stats = json.loads(get(f"http://{server.http_url}/v2/models/stats"))["model_stats"]
    return {one["name"]: one["inference_stats"]["success"]["count"] for one in stats}


@pytest.fixture(scope="module")
def server(babble, installation, tmp_path_factory):
    with served(babble, installation, tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.fixture(scope="module")
def text_size(babble):
    """Where speech begins in the merged vocabulary."""
    return len(TextTokenizer.from_folder(babble / BACKBONE))


@pytest.mark.long
def test_cosyvoice3_is_served_as_well(babble_v3, installation, tmp_path):
    """What the tests after this one find of CosyVoice2, of a server that is gone when theirs starts."""
    text_size = len(TextTokenizer.from_folder(babble_v3 / BACKBONE))
    with (
        served(babble_v3, installation, tmp_path / "server") as server,
        closing(Vivavoce(*load_model(babble_v3, (torch.device("cpu"),)))) as own,
    ):
        test_every_model_is_ready(server)
        test_the_inner_models_give_what_the_package_gives(server, own, babble_v3, text_size)
        for model in SPEAKING:
            test_a_stream_is_the_package_s_own(server, own, babble_v3, model)
            test_a_recording_is_spoken_with(server, model)
            test_the_bridge_streams_what_the_server_makes(server, tmp_path, model)
        report = asyncio.run(soak_server(server, LEAVING))
        assert report.outcomes == {"heard": 9, "left": 3}


@pytest.mark.parametrize("model", SPEAKING)
def test_the_bridge_streams_what_the_server_makes(server, tmp_path, model):
    write_audio(tmp_path / "hum.wav", hum(1.0), RATE)
    (tmp_path / "hum.txt").write_text("a hum")

    async def speak():
        speaker = await TritonBackend.open(f"triton://{server.grpc_url}", tmp_path, model=model)
        try:
            assert {voice.name for voice in await speaker.voices("")} >= {"hum"}
            answer = await speaker.speak(SpeechRequest("Hi there, how are you. And you, my good friend?", "hum"))
            return [event async for event in answer], answer.verdict
        finally:
            await speaker.close()

    events, verdict = asyncio.run(speak())
    told = [event for event in events if isinstance(event, SegmentText)]
    pieces = [event for event in events if isinstance(event, AudioChunk)]
    assert told[-1].end == 47
    assert {piece.segment for piece in pieces} == {one.place for one in told}
    assert verdict.reason is FinishReason.STOP
    assert verdict.audio_s == pytest.approx(sum(len(piece.samples) for piece in pieces) / 24_000)


def heard_as_the_later_clients(server, model, texts):
    """What the original's newer `client_grpc.py` hears: one open stream for all requests of a task, by their ids."""
    answers, heard = queue.Queue(), []
    padded = np.pad(hum(1.0), (0, 9 * RATE))  # to ten seconds
    with grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, text in enumerate(texts):
            tensors = inputs({**recorded(padded, RATE), "reference_text": "Hm.", "target_text": text})
            outputs = [grpc.InferRequestedOutput("waveform")]
            client.async_stream_infer(
                model, tensors, request_id=f"uuid {number}", outputs=outputs, enable_empty_final_response=True
            )
            chunks, final = [], False
            while not final:
                result, error = answers.get(timeout=PATIENCE_S)
                assert error is None, str(error)
                assert result.get_response().id == f"uuid {number}"
                final = result.get_response().parameters["triton_final_response"].bool_param
                if not final:
                    chunks.append(result.as_numpy("waveform").reshape(-1))
                    assert chunks[-1].size
            heard.append(np.concatenate(chunks))
        client.stop_stream()
    return heard


def test_the_layout_for_cosyvoice3(babble_v3, installation, tmp_path):
    with (
        served(babble_v3, installation, tmp_path, models=ModelSet.COSYVOICE3) as server,
        closing(Vivavoce(*load_model(babble_v3, (torch.device("cpu"),)))) as own,
    ):
        names = {"audio_tokenizer", "cosyvoice3", "speaker_embedding", "tensorrt_llm", "token2wav", "vocoder"}
        assert {model["name"] for model in server.models()} == names
        first, second = heard_as_the_later_clients(server, "cosyvoice3", ["Hi.", "Ho."])
        assert first.size
        assert first.tobytes() != second.tobytes()
        test_a_stream_is_the_package_s_own(server, own, babble_v3, "cosyvoice3")
        given = {"reference_wav": hum(1.0), "reference_wav_len": np.int32(RATE)}
        tokens = infer(server, "audio_tokenizer", "prompt_speech_tokens", **given)
        mel = infer(server, "token2wav", "mel", target_speech_tokens=tokens)
        assert mel.shape == (80, 2 * len(tokens))
        assert infer(server, "vocoder", "tts_speech", mel=mel, finalize=np.bool_(True)).shape == (960 * len(tokens),)


def test_the_layout_with_dit_names_and_an_endpoint(babble, text_size, installation, tmp_path):
    with (
        serving([said("<|s_7|><|s_9|>")] * 15) as endpoint,
        served(babble, installation, tmp_path, models=ModelSet.DIT, llm_api_base=endpoint.address) as server,
    ):
        names = {"audio_tokenizer", "cosyvoice2_dit", "speaker_embedding", "token2wav_dit"}
        assert {model["name"] for model in server.models()} == names
        heard = heard_as_the_later_clients(server, "cosyvoice2_dit", ["Hi there.", "Ho there."])
        assert [samples.size for samples in heard] == [30 * 960] * 2
        contents = [asked["messages"][0]["content"] for _, asked in endpoint.asked]
        assert [content[-9:] for content in contents] == ["Hi there.", "Ho there."]
        tokens = np.full(20, text_size + 7, np.int32)
        given = {"reference_wav": hum(1.0), "reference_wav_len": np.int32(RATE), "target_speech_tokens": tokens}
        assert infer(server, "token2wav_dit", "waveform", **given).shape == (20 * 960,)


def test_every_model_is_ready(server):
    names = {"audio_tokenizer", "speaker_embedding", "token2wav", "tensorrt_llm", *SPEAKING}
    assert {model["name"]: model["state"] for model in server.models()} == dict.fromkeys(names, "READY")
    for path in ("live", "ready"):
        assert get(f"http://{server.http_url}/v2/health/{path}") == ""


def test_the_inner_models_give_what_the_package_gives(server, synthesizer, babble, text_size):
    recording, extractor = hum(1.0), synthesizer.front_end.extractor
    given = {"reference_wav": recording, "reference_wav_len": np.int32(len(recording))}
    found = infer(server, "audio_tokenizer", "prompt_speech_tokens", **given)
    assert found.tolist() == (extractor.speech_tokens(Audio(recording, RATE)).numpy() + text_size).tolist()
    found = infer(server, "speaker_embedding", "prompt_spk_embedding", reference_wav=recording)
    assert np.allclose(found, extractor.embedding(Audio(recording, RATE)).half().numpy(), atol=1e-3)
    tokens = torch.randint(0, 6561, (30,), generator=torch.Generator().manual_seed(1))
    given = {"target_speech_tokens": (tokens + text_size).numpy().astype(np.int32), "seed": np.int64(3)}
    voice = synthesizer.front_end.conditioning(built_in_voices(babble)["babble-a"])
    request = SegmentRequest(voice, speech_tokens=tuple(tokens.tolist()), seed=3)
    expected = synthesizer.engine.submit(EngineRequest((request,))).result().samples
    assert alike(infer(server, "token2wav", "waveform", **given), expected)


@pytest.mark.parametrize("model", SPEAKING)
def test_a_stream_is_the_package_s_own(server, synthesizer, babble, model):
    heard = streamed(server, model, target_text="Hi.", seed=np.int64(4))
    voice, sampling = built_in_voices(babble)["babble-a"], SamplingParams()
    if model != "vivavoce":  # samples as the original deployment does, and its models exchange 16 bits
        voice, sampling = replace(voice, embedding=voice.embedding.half().float()), SamplingParams(TOP_P, TOP_K)
    options = SpeakOptions(seed=4, sampling=sampling)
    chunks = synthesizer.stream("Hi.", voice, options=options, policy=ChunkPolicy.exponential())
    assert near(heard, np.concatenate([chunk.samples for chunk in chunks]))


@pytest.mark.parametrize("model", SPEAKING)
def test_many_users_at_once_hear_their_own_audio(server, model):
    def heard(seed):
        return streamed(server, model, target_text=f"Hi {seed}.", seed=np.int64(seed))

    alone = {seed: heard(seed) for seed in range(0, USERS, 4)}
    with ThreadPoolExecutor(USERS) as pool:
        together = list(pool.map(heard, range(USERS)))
    for seed, samples in alone.items():
        assert near(samples, together[seed])
    assert len({samples.tobytes() for samples in together}) == USERS


@pytest.mark.parametrize("model", SPEAKING)
def test_a_recording_is_spoken_with(server, model):
    heard = streamed(server, model, reference_text="Hm.", **recorded(hum(1.0), RATE))
    stored = streamed(server, model, target_text="Hi.")
    assert heard.size
    assert heard.tobytes() != stored.tobytes()


@pytest.mark.parametrize("model", SPEAKING)
def test_who_leaves_frees_the_place(server, model):
    """More leave minutes of speech than are spoken at a time; what none of them hears is not made."""

    def leave(seed):
        with stream(server, model, target_text=LONG_TEXT, seed=np.int64(seed)) as chunks:
            return next(chunks).size

    with ThreadPoolExecutor(LEAVING) as pool:
        assert all(pool.map(leave, range(LEAVING)))
    assert streamed(server, model, target_text="Hi.").size
    # Pieces of audio that were made in all: minutes of speech would be many more.
    assert counts(server)["token2wav"] < 8 * LEAVING + 100


def recorded(samples, length):
    return {"target_text": "Hi.", "reference_wav": samples, "reference_wav_len": np.int32(length)}


@pytest.mark.parametrize("model", SPEAKING)
@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"seed": np.int64(1)}, "target_text"),
        ({"target_text": ""}, "text"),
        ({"target_text": np.float32(1)}, "target_text"),
        ({"target_text": "Hi.", "voice": "nobody"}, "nobody"),
        (recorded(np.zeros(RATE, np.float32), RATE), "reference_wav"),
        (recorded(hum(0.01), 160), "reference_wav"),
        (recorded(hum(1.0), 99_999), "reference_wav_len"),
        ({"target_text": "Hi.", "colour": np.float32(1)}, "colour"),
        ({"target_text": np.array(["Hi.", "Ho."], dtype=object)}, "target_text"),
    ],
)
def test_faults_are_answered_with_a_sentence(server, model, tensors, named):
    with pytest.raises(InferenceServerException, match=named) as refused:
        streamed(server, model, **tensors)
    assert "Traceback" not in str(refused.value)
    assert get(f"http://{server.http_url}/v2/health/ready") == ""


def test_statistics_and_metrics_count_what_was_asked_for(server):
    before = counts(server)
    for model in SPEAKING:
        assert streamed(server, model, target_text="Hi.").size
    after = counts(server)
    for model in (*SPEAKING, "tensorrt_llm"):
        assert after[model] == before[model] + 1
    metrics = get(server.metrics_url)
    for model in SPEAKING:
        assert f'nv_inference_request_success{{model="{model}",version="1"}} {after[model]}' in metrics


def test_memory_is_flat(server):
    """After the tests before, which have warmed it up; `make soak` asks 2,000 times."""
    report = asyncio.run(soak_server(server, SOAK))
    assert report.outcomes == {"heard": SOAK * 4 // 5, "left": SOAK // 5}
    assert report.broken == (), report
