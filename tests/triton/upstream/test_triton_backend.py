"""A Triton server's speech behind this program's doors. The server is a stand-in with a real gRPC interface."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc")

from tests.triton.client.fake_triton import CHUNKS, INPUTS, WAIT_S, FakeTriton, serving
from tests.triton.upstream.test_voices_folder import write
from vivavoce.engine.request import AudioChunk, SamplingParams
from vivavoce.errors import EngineStopped, Forbidden, InvalidRequest, InvalidText, VivavoceError, VoiceNotFound
from vivavoce.frontend.speech import FinishReason, Recording, SegmentText, SpeechRequest
from vivavoce.frontend.speech_backend import SpeechStream
from vivavoce_triton.upstream.triton_backend import FRESH_S, TritonBackend

WHOLE = np.concatenate(CHUNKS)
TWO = "This is the first sentence. And this is the second one."


class Watched(FakeTriton):
    """Says when a second request has come, and can lose its model."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.second = threading.Event()
        self.gone = False

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.gone:
            context.abort(grpc.StatusCode.UNAVAILABLE, "it is being loaded")
        return super().ModelConfig(request, context)

    def _read(self, request: Any) -> str:
        text = super()._read(request)
        if len(self.seen) == 2:
            self.second.set()
        return text


@asynccontextmanager
async def speaking(
    folder: Path | None = None, clock: Callable[[], float] = time.monotonic, **given: Any
) -> AsyncIterator[tuple[TritonBackend, Watched]]:
    """A speaker in front of a stand-in; given: to the stand-in."""
    with serving(Watched(**given)) as fake:
        assert isinstance(fake, Watched)
        speaker = await TritonBackend.open(f"triton://{fake.address}", folder, clock=clock)
        try:
            yield speaker, fake
        finally:
            await speaker.close()


async def heard(stream: SpeechStream) -> tuple[list[SegmentText], np.ndarray]:
    segments, pieces = [], [np.zeros(0, np.float32)]
    async for event in stream:
        if isinstance(event, SegmentText):
            segments.append(event)
        else:
            pieces.append(event.samples)
    return segments, np.concatenate(pieces)


def recording(seconds: float = 1.0, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    write(file, seconds, rate)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "anna.wav").write_bytes(recording())
    (tmp_path / "anna.txt").write_text("What Anna says.\n")
    return tmp_path


@pytest.mark.parametrize("decoupled", [True, False])
async def test_a_text_is_spoken_sentence_by_sentence_in_order(decoupled: bool) -> None:
    async with speaking(decoupled=decoupled, sample_rate="22050") as (speaker, fake):
        assert speaker.about.name == "cosyvoice2"
        assert speaker.about.sample_rate == 22_050
        stream = await speaker.speak(SpeechRequest(TWO, seed=5, speed=1.5))
        segments, samples = await heard(stream)
        assert segments == [SegmentText(0, 0, 27), SegmentText(1, 28, len(TWO))]
        np.testing.assert_array_equal(samples, np.concatenate([WHOLE, WHOLE]))
        assert [seen["target_text"] for seen in fake.seen] == [TWO[:27], TWO[28:]]
        assert [int(seen["seed"].item()) for seen in fake.seen] == [5, 6]
        assert {float(seen["speed"].item()) for seen in fake.seen} == {1.5}
        assert not any("reference_wav" in seen for seen in fake.seen)
        verdict = stream.verdict
        assert verdict is not None
        assert (verdict.reason, verdict.segments_spoken, verdict.segments_given) == (FinishReason.STOP, 2, 2)
        assert verdict.audio_s == pytest.approx(6000 / 22_050)


async def test_the_next_sentence_is_asked_for_while_the_first_is_heard() -> None:
    async with speaking() as (speaker, fake):
        stream = await speaker.speak(SpeechRequest("slow\nAnd this is the second one."))
        events = aiter(stream)
        assert isinstance(await anext(events), SegmentText)
        assert isinstance(await anext(events), AudioChunk)
        assert await asyncio.to_thread(fake.second.wait, WAIT_S)
        assert not fake.cancelled.is_set()
        stream.cancel()
        assert await asyncio.to_thread(fake.cancelled.wait, WAIT_S)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert stream.verdict is not None
        assert stream.verdict.reason is FinishReason.CANCELLED


async def test_a_text_that_arrives_is_spoken_before_its_end() -> None:
    async with speaking() as (speaker, _):
        stream = await speaker.speak(SpeechRequest(None))
        for piece in ("  This is the fi", "rst sentence. ", "\n \n", "And"):
            await stream.push(piece)
        events = aiter(stream)
        assert await anext(events) == SegmentText(0, 2, 29)
        for chunk in CHUNKS:
            piece = await anext(events)
            assert isinstance(piece, AudioChunk)
            np.testing.assert_array_equal(piece.samples, chunk)
        await stream.push(" this is the second one")
        await stream.end()
        assert await anext(events) == SegmentText(1, 33, 59)
        with pytest.raises(InvalidText, match="20000"):
            await stream.push("a" * 20_001)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_cancel_ends_the_wait_for_text(begun: bool) -> None:
    async with speaking() as (speaker, fake):
        stream = await speaker.speak(SpeechRequest(None))
        listening = asyncio.create_task(heard(stream))
        if begun:
            await asyncio.sleep(0)
        stream.cancel()
        segments, samples = await asyncio.wait_for(listening, WAIT_S)
        assert (segments, len(samples), fake.seen) == ([], 0, [])


async def test_an_arriving_text_without_a_word_is_refused() -> None:
    async with speaking() as (speaker, _):
        stream = await speaker.speak(SpeechRequest(None))
        await stream.push(" ... ")
        await stream.end()
        with pytest.raises(InvalidText, match="at least one word"):
            await heard(stream)


@pytest.mark.parametrize(
    ("text", "words", "audio_s"),
    [
        ("late", "say something else", 0.05),
        ("cut", "before its final response", 0.05),
        ("nan", "not finite", 0.0),
        ("empty", "gave no audio", 0.0),
    ],
)
async def test_what_the_server_breaks_off_is_an_error_after_what_came(text: str, words: str, audio_s: float) -> None:
    async with speaking() as (speaker, _):
        stream = await speaker.speak(SpeechRequest(text))
        with pytest.raises(VivavoceError, match=words):
            await heard(stream)
        assert stream.verdict is not None
        assert (stream.verdict.reason, stream.verdict.error_code) == (FinishReason.ERROR, "server_refused")
        assert stream.verdict.audio_s == audio_s
        assert speaker.ready


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (SpeechRequest("Hello.", mode="zero_shot"), "mode"),
        (SpeechRequest("Hello.", mode="cross_lingual"), "mode"),
        (SpeechRequest("Hello.", mode="instruct"), "mode"),
        (SpeechRequest("Hello.", voice=Recording(recording()), mode="zero_shot"), "mode"),
        (SpeechRequest("Hello.", policy="equal"), "chunk_policy"),
        (SpeechRequest("Hello.", language="en"), "language"),
        (SpeechRequest("Hello.", reading="off"), "reading"),
        (SpeechRequest("Hello.", sampling=SamplingParams(top_k=3)), "sampling"),
        (SpeechRequest("Hello.", lexicon={"a": "b"}), "lexicon"),
        (SpeechRequest("Hello.", flow_steps="fast"), "flow_steps"),
        (SpeechRequest("Hello.", adapter="brand"), "adapter"),
        (SpeechRequest("Hello.", instruct="Gently."), "instruct_text"),
        (SpeechRequest("..."), "text"),
        (SpeechRequest("a" * 20_001), "text"),
        (SpeechRequest("Hello.", voice=Recording(b"")), "reference audio"),
        (SpeechRequest("Hello.", voice=Recording(recording(0.1))), "reference audio"),
        (SpeechRequest("Hello.", voice="nobody"), "voice"),
    ],
)
async def test_what_cannot_be_done_is_refused_at_once(order: SpeechRequest, field: str, folder: Path) -> None:
    async with speaking(folder) as (speaker, fake):
        with pytest.raises((InvalidRequest, VoiceNotFound), match=f"^{field}:"):
            await speaker.speak(order)
        assert not fake.seen


@pytest.mark.parametrize(
    ("order", "field"), [(SpeechRequest("Hi.", seed=1), "seed"), (SpeechRequest("Hi.", speed=2), "speed")]
)
async def test_a_model_without_our_inputs_takes_their_defaults_alone(
    monkeypatch: pytest.MonkeyPatch, order: SpeechRequest, field: str
) -> None:
    monkeypatch.setattr("tests.triton.client.fake_triton.INPUTS", INPUTS[:4])
    async with speaking() as (speaker, fake):
        await heard(await speaker.speak(SpeechRequest("Hello.")))
        assert set(fake.seen[0]) == {"id", "target_text"}
        with pytest.raises(InvalidRequest, match=f"^{field}:"):
            await speaker.speak(order)


async def test_a_reading_goes_to_a_model_that_takes_it_and_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with speaking() as (speaker, fake):
        for reading in ("natural", "official"):  # it reads as it does
            await heard(await speaker.speak(SpeechRequest("Hello.", reading=reading)))
        assert not any("reading" in one for one in fake.seen)
        with pytest.raises(InvalidRequest, match="input: the Triton server that speaks here normalises texts"):
            await speaker.normalize(SpeechRequest("Hello."))
    monkeypatch.setattr("tests.triton.client.fake_triton.INPUTS", (*INPUTS, "reading"))
    async with speaking() as (speaker, fake):
        await heard(await speaker.speak(SpeechRequest("Hello.", reading="off")))
        await heard(await speaker.speak(SpeechRequest("Hello.")))
        assert [one["reading"] for one in fake.seen] == ["off", "natural"]


async def test_voices_are_the_folder_s_recordings(folder: Path) -> None:
    async with speaking(folder) as (speaker, fake):
        voices = [voice for voice in await speaker.voices("somebody") if voice.kind != "alias"]
        assert [(voice.name, voice.public, voice.transcript) for voice in voices] == [("anna", True, "What Anna says.")]
        await heard(await speaker.speak(SpeechRequest("Hello.", voice="anna")))
        assert fake.seen[0]["reference_text"] == "What Anna says."
        assert fake.seen[0]["reference_wav_len"].item() == 16_000
        assert fake.seen[0]["reference_wav"].shape == (1, 16_000)
        own = Recording(recording(rate=8_000), "Mine.")
        await heard(await speaker.speak(SpeechRequest("Hello.", voice=own)))
        assert fake.seen[1]["reference_text"] == "Mine."
        assert fake.seen[1]["reference_wav"].shape == (1, 16_000)
        (folder / "default.wav").write_bytes(recording(2.0))
        await heard(await speaker.speak(SpeechRequest("Hello.")))
        assert fake.seen[2]["reference_wav"].shape == (1, 32_000)
        with pytest.raises(Forbidden, match=r"NAME\.wav"):
            await speaker.add_voice("", "new", own)
        with pytest.raises(Forbidden, match="folder"):
            await speaker.remove_voice("", "anna")


class Clock:
    """Goes on when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    async def look(self, speaker: TritonBackend) -> bool:
        """Ready, as a look that has had its time found it."""
        self.now += FRESH_S
        assert speaker.ready is speaker._ready, "as it was found last"
        assert speaker._checking is not None
        await speaker._checking
        return speaker.ready


async def test_a_server_that_says_nonsense_is_away_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    async with speaking(clock=clock) as (speaker, _):
        with monkeypatch.context() as patch:
            patch.setattr("vivavoce_triton.client.wire.served_model", lambda fields: {}["dtype"])
            assert not await clock.look(speaker)
            with pytest.raises(EngineStopped, match="is away"):
                await speaker.speak(SpeechRequest("Hello."))
        await heard(await speaker.speak(SpeechRequest("Hello.")))


async def test_a_server_that_goes_and_comes_back() -> None:
    clock = Clock()
    async with speaking(clock=clock) as (speaker, fake):
        fake.gone = True
        assert speaker.ready  # it was looked at just now
        assert not await clock.look(speaker)
        with pytest.raises(EngineStopped, match="is away") as away:
            await speaker.speak(SpeechRequest("Hello."))
        assert fake.address not in str(away.value)  # clients need not know it
        fake.gone = False
        await heard(await speaker.speak(SpeechRequest("Hello.")))
        assert await clock.look(speaker)
        await speaker.close()
        assert not speaker.ready
        with pytest.raises(EngineStopped, match="shutting down"):
            await speaker.speak(SpeechRequest("Hello."))


async def test_a_stream_to_a_server_that_is_away_says_so_and_readiness_follows() -> None:
    with serving(Watched()) as fake:
        speaker = await TritonBackend.open(fake.address, None)
    stream = await speaker.speak(SpeechRequest("Hello."))
    with pytest.raises(EngineStopped, match="is away") as told:
        await heard(stream)
    assert "127.0.0.1" not in str(told.value)
    assert not speaker.ready
    await speaker.close()


async def test_a_server_that_is_not_there_at_the_start_is_an_error() -> None:
    with serving(FakeTriton()) as fake, pytest.raises(EngineStopped, match=r"^upstream:"):
        await TritonBackend.open(fake.address, None, model="other")
    with pytest.raises(EngineStopped, match=r"^upstream:"):
        await TritonBackend.open(fake.address, None)


async def test_a_close_ends_what_is_spoken() -> None:
    async with speaking() as (speaker, _):
        stream = await speaker.speak(SpeechRequest("slow\nAnd more."))
        events = aiter(stream)
        await anext(events)
        await anext(events)
        await speaker.close()
        assert stream.verdict is not None
        assert stream.verdict.reason is FinishReason.CANCELLED
        assert [event async for event in events] == []
