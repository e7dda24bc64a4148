"""A real tritonserver on the whole repository, with the tiny random model: every model, many users, faults, memory."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from server_environment import server_installation
from serving_client import infer, stream, streamed
from speaking_helpers import RATE, hum, near
from tritonclient.utils import InferenceServerException

from tests.soak.served import served, soak_server
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.doors.bridge.triton_speaker import TritonSpeaker
from vivavoce.doors.triton.models.inner_language_model import TOP_K, TOP_P
from vivavoce.doors.triton.server import TritonServer
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SamplingParams, SpeechRequest, SynthesisRequest
from vivavoce.service.audio.types import Audio
from vivavoce.service.audio.wav import write_wav
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.speaker import SegmentText, SpeechEvent, SpeechPiece
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.modes import Mode, condition
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.text.tokenizer import TextTokenizer
from vivavoce.service.voices.built_in import built_in_voices
from vivavoce.service.voices.voice import Voice

SPEAKING = ("cosyvoice2", "vivavoce")
USERS = 8
LEAVING = 12
SOAK = 80
LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3


@pytest.fixture(scope="module")
def server(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with served(babble, server_installation(), tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.fixture(scope="module")
def text_size(babble: Path) -> int:
    """Where speech begins in the merged vocabulary."""
    return len(TextTokenizer.from_folder(babble / BACKBONE))


def speaker(babble: Path) -> Voice:
    """As it arrives where it is needed: between the staged models it is of 16 bits."""
    voice = built_in_voices(babble)["babble-a"]
    return replace(voice, embedding=voice.embedding.half().float())


def own(synthesizer: Synthesizer, voice: Voice, seed: int, sampling: SamplingParams) -> np.ndarray:
    options, policy, text = SpeakOptions(seed=seed, sampling=sampling), ChunkPolicy.exponential(), "Hi."
    return np.concatenate([chunk.samples for chunk in synthesizer.stream(text, voice, options, policy)])


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.read().decode()


@pytest.mark.parametrize("model", SPEAKING)
def test_the_bridge_streams_what_the_server_makes(server: TritonServer, tmp_path: Path, model: str) -> None:
    write_wav(tmp_path / "hum.wav", hum(1.0), RATE)
    (tmp_path / "hum.txt").write_text("a hum")

    async def speak() -> tuple[list[SpeechEvent], Verdict | None]:
        speaker = await TritonSpeaker.open(f"triton://{server.grpc_url}", tmp_path, model=model)
        try:
            assert {voice.name for voice in await speaker.voices("")} >= {"hum"}
            answer = await speaker.speak(SpeechOrder("Hi there, how are you. And you, my good friend?", "hum"))
            return [event async for event in answer], answer.verdict
        finally:
            await speaker.close(0.0)

    events, verdict = asyncio.run(speak())
    told = [event for event in events if isinstance(event, SegmentText)]
    pieces = [event for event in events if isinstance(event, SpeechPiece)]
    assert [(one.start, one.end) for one in told][-1][1] == 47
    assert {piece.segment for piece in pieces} == {one.place for one in told}
    assert verdict is not None
    assert verdict.reason is FinishReason.STOP
    assert verdict.audio_s == pytest.approx(sum(len(piece.samples) for piece in pieces) / 24_000)


def test_every_model_is_ready(server: TritonServer) -> None:
    states = {model["name"]: model["state"] for model in server.models()}
    names = {"audio_tokenizer", "speaker_embedding", "token2wav", "tensorrt_llm", *SPEAKING}
    assert states == dict.fromkeys(names, "READY")
    for path in ("live", "ready"):
        assert get(f"http://{server.http_url}/v2/health/{path}") == ""


def test_the_audio_tokenizer_s_tokens_are_the_package_s(
    server: TritonServer, synthesizer: Synthesizer, text_size: int
) -> None:
    audio = hum(1.0)
    given = {"reference_wav": (audio, "FP32"), "reference_wav_len": (np.int32(len(audio)), "INT32")}
    found = infer(server.grpc_url, "audio_tokenizer", given, "prompt_speech_tokens")
    expected = synthesizer.extractor.speech_tokens(Audio(audio, RATE)).numpy() + text_size
    assert found.tolist() == expected.tolist()


def test_the_embedding_is_the_package_s(server: TritonServer, synthesizer: Synthesizer) -> None:
    found = infer(server.grpc_url, "speaker_embedding", {"reference_wav": (hum(1.0), "FP32")}, "prompt_spk_embedding")
    expected = synthesizer.extractor.embedding(Audio(hum(1.0), RATE)).half().numpy()
    assert np.allclose(found, expected, atol=1e-3)


def test_token2wav_s_audio_is_the_package_s(
    server: TritonServer, synthesizer: Synthesizer, babble: Path, text_size: int
) -> None:
    tokens = torch.randint(0, 6561, (30,), generator=torch.Generator().manual_seed(1))
    given = {
        "target_speech_tokens": ((tokens + text_size).numpy().astype(np.int32), "INT32"),
        "seed": (np.int64(3), "INT64"),
    }
    found = infer(server.grpc_url, "token2wav", given, "waveform")
    voice = condition(built_in_voices(babble)["babble-a"], Mode.ZERO_SHOT)
    request = SynthesisRequest(voice, speech_tokens=tuple(tokens.tolist()), seed=3)
    expected = synthesizer.engine.submit(SpeechRequest((request,))).result().samples
    assert np.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("model", SPEAKING)
def test_a_stream_is_the_package_s_own(
    server: TritonServer, synthesizer: Synthesizer, babble: Path, model: str
) -> None:
    heard = streamed(server.grpc_url, model, target_text="Hi.", seed=np.int64(4))
    if model == "cosyvoice2":  # samples as the original deployment does
        expected = own(synthesizer, speaker(babble), 4, SamplingParams(top_p=TOP_P, top_k=TOP_K))
    else:
        expected = own(synthesizer, built_in_voices(babble)["babble-a"], 4, SamplingParams())
    assert heard.shape == expected.shape
    assert near(heard, expected)


@pytest.mark.parametrize("model", SPEAKING)
def test_many_users_at_once_hear_their_own_audio(server: TritonServer, model: str) -> None:
    def heard(seed: int) -> np.ndarray:
        return streamed(server.grpc_url, model, target_text=f"Hi {seed}.", seed=np.int64(seed))

    alone = {seed: heard(seed) for seed in range(0, USERS, 4)}
    with ThreadPoolExecutor(USERS) as pool:
        together = list(pool.map(heard, range(USERS)))
    for seed, samples in alone.items():
        assert samples.shape == together[seed].shape
        assert near(samples, together[seed])
    assert len({samples.tobytes() for samples in together}) == USERS


@pytest.mark.parametrize("model", SPEAKING)
def test_a_recording_is_spoken_with(server: TritonServer, model: str) -> None:
    audio = hum(1.0)
    given = {"reference_wav": audio, "reference_text": "Hm.", "target_text": "Hi."}
    heard = streamed(server.grpc_url, model, reference_wav_len=np.int32(len(audio)), **given)
    stored = streamed(server.grpc_url, model, target_text="Hi.")
    assert heard.size
    assert heard.tobytes() != stored.tobytes()


@pytest.mark.parametrize("model", SPEAKING)
def test_who_leaves_frees_the_place(server: TritonServer, model: str) -> None:
    """More leave minutes of speech than are spoken at a time; what none of them hears is not made."""

    def leave(seed: int) -> int:
        with stream(server.grpc_url, model, target_text=LONG, seed=np.int64(seed)) as asked:
            return next(asked.chunks()).size

    with ThreadPoolExecutor(LEAVING) as pool:
        assert all(pool.map(leave, range(LEAVING)))
    assert streamed(server.grpc_url, model, target_text="Hi.").size
    # Pieces of audio that were made in all: minutes of speech would be many more.
    assert counts(server)["token2wav"] < 8 * LEAVING + 100


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({"seed": np.int64(1)}, "target_text"),
    "empty text": ({"target_text": ""}, "text"),
    "text of another type": ({"target_text": np.float32(1)}, "target_text"),
    "unknown voice": ({"target_text": "Hi.", "voice": "nobody"}, "nobody"),
    "silent audio": (
        {"target_text": "Hi.", "reference_wav": np.zeros(RATE, np.float32), "reference_wav_len": np.int32(RATE)},
        "reference_wav",
    ),
    "short audio": (
        {"target_text": "Hi.", "reference_wav": hum(0.01), "reference_wav_len": np.int32(160)},
        "reference_wav",
    ),
    "a length beyond the audio": (
        {"target_text": "Hi.", "reference_wav": hum(1.0), "reference_wav_len": np.int32(99_999)},
        "reference_wav_len",
    ),
    "an unknown tensor": ({"target_text": "Hi.", "colour": np.float32(1)}, "colour"),
    "a shape of its own": ({"target_text": np.array(["Hi.", "Ho."], dtype=object)}, "target_text"),
}


@pytest.mark.parametrize("model", SPEAKING)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_answered_with_a_sentence(server: TritonServer, model: str, fault: str) -> None:
    tensors, named = FAULTS[fault]
    with pytest.raises(InferenceServerException, match=named) as refused:
        streamed(server.grpc_url, model, **tensors)
    assert "Traceback" not in str(refused.value)
    assert get(f"http://{server.http_url}/v2/health/ready") == ""


def counts(server: TritonServer) -> dict[str, int]:
    """Requests that each model has answered."""
    stats = json.loads(get(f"http://{server.http_url}/v2/models/stats"))["model_stats"]
    return {one["name"]: one["inference_stats"]["success"]["count"] for one in stats}


def test_statistics_and_metrics_count_what_was_asked_for(server: TritonServer) -> None:
    before = counts(server)
    for model in SPEAKING:
        assert streamed(server.grpc_url, model, target_text="Hi.").size
    after = counts(server)
    for model in (*SPEAKING, "tensorrt_llm"):
        assert after[model] == before[model] + 1
    metrics = get(server.metrics_url)
    for model in SPEAKING:
        assert f'nv_inference_request_success{{model="{model}",version="1"}} {after[model]}' in metrics


def test_memory_is_flat(server: TritonServer) -> None:
    """After the tests before, which have warmed it up; `make soak` asks 2,000 times."""
    report = asyncio.run(soak_server(server, SOAK))
    assert report.outcomes == {"heard": SOAK * 4 // 5, "left": SOAK // 5}
    assert report.broken == (), report
