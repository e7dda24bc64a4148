"""A Triton server's speech behind this program's doors. The server is a stand-in with a real gRPC interface."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import soundfile

pytest.importorskip("tritonclient.grpc")

from tests.clients.fake_triton import CHUNKS, INPUTS, WAIT_S, FakeTriton, serving
from vivavoce.doors.bridge.triton_speaker import FRESH_S, TritonSpeaker
from vivavoce.doors.bridge.voices_folder import VoicesFolder
from vivavoce.errors import (
    EngineStopped,
    Forbidden,
    InvalidAudio,
    InvalidRequest,
    InvalidText,
    StageFailed,
    VivavoceError,
    VoiceNotFound,
)
from vivavoce.service.host.order import Recording, Sampling, SpeechOrder
from vivavoce.service.host.speaker import SegmentText, SpeechPiece, SpeechStream, VoiceSummary
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.text.sentences import Sentence

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


def with_speaker(
    scene: Callable[[TritonSpeaker, Watched], Awaitable[None]], folder: Path | None = None, **given: Any
) -> None:
    """Run a scene with a speaker in front of a stand-in; given: to the stand-in."""

    async def run(fake: Watched) -> None:
        speaker = await TritonSpeaker.open(f"triton://{fake.address}", folder)
        try:
            await scene(speaker, fake)
        finally:
            await speaker.close(0.0)

    with serving(Watched(**given)) as fake:
        assert isinstance(fake, Watched)
        asyncio.run(run(fake))


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
    tone = 0.3 * np.sin(2 * np.pi * 200 * np.arange(round(seconds * rate)) / rate)
    soundfile.write(file, tone.astype(np.float32), rate, format="WAV")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "anna.wav").write_bytes(recording())
    (tmp_path / "anna.txt").write_text("What Anna says.\n")
    return tmp_path


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_text_is_spoken_sentence_by_sentence_in_order(decoupled: bool) -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        assert speaker.about.name == "cosyvoice2"
        assert speaker.about.sample_rate == 22_050
        stream = await speaker.speak(SpeechOrder(TWO, seed=5, speed=1.5))
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

    with_speaker(scene, decoupled=decoupled, sample_rate="22050")


def test_the_next_sentence_is_asked_for_while_the_first_is_heard() -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        stream = await speaker.speak(SpeechOrder("slow\nAnd this is the second one."))
        events = aiter(stream)
        assert isinstance(await anext(events), SegmentText)
        assert isinstance(await anext(events), SpeechPiece)
        assert await asyncio.to_thread(fake.second.wait, WAIT_S)
        assert not fake.cancelled.is_set()
        stream.cancel()
        assert await asyncio.to_thread(fake.cancelled.wait, WAIT_S)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert stream.verdict is not None
        assert stream.verdict.reason is FinishReason.CANCELLED

    with_speaker(scene)


def test_a_text_that_arrives_is_spoken_before_its_end() -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        stream = await speaker.speak(SpeechOrder(None))
        for piece in ("  This is the fi", "rst sentence. ", "\n \n", "And"):
            await stream.push(piece)
        events = aiter(stream)
        assert await anext(events) == SegmentText(0, 2, 29)
        for chunk in CHUNKS:
            piece = await anext(events)
            assert isinstance(piece, SpeechPiece)
            np.testing.assert_array_equal(piece.samples, chunk)
        await stream.push(" this is the second one")
        await stream.end()
        assert await anext(events) == SegmentText(1, 33, 59)
        with pytest.raises(InvalidText, match="U\\+0000"):
            await stream.push("\0")

    with_speaker(scene)


def test_a_cancel_ends_the_wait_for_text() -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        stream = await speaker.speak(SpeechOrder(None))
        listening = asyncio.create_task(heard(stream))
        await asyncio.sleep(0)
        stream.cancel()
        segments, samples = await asyncio.wait_for(listening, WAIT_S)
        assert (segments, len(samples)) == ([], 0)
        assert not fake.seen

    with_speaker(scene)


def test_an_arriving_text_without_a_word_is_refused() -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        stream = await speaker.speak(SpeechOrder(None))
        await stream.push(" ... ")
        await stream.end()
        with pytest.raises(InvalidText, match="at least one word"):
            await heard(stream)

    with_speaker(scene)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("late", "server_refused", "say something else"),
        ("cut", "server_refused", "before its final response"),
        ("nan", "server_refused", "not finite"),
        ("empty", "server_refused", "gave no audio"),
    ],
)
def test_what_the_server_breaks_off_is_an_error_after_what_came(text: str, code: str, words: str) -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        stream = await speaker.speak(SpeechOrder(text))
        with pytest.raises(VivavoceError, match=words):
            await heard(stream)
        assert stream.verdict is not None
        assert (stream.verdict.reason, stream.verdict.error_code) == (FinishReason.ERROR, code)
        assert stream.verdict.audio_s == (0.05 if text in ("late", "cut") else 0.0)
        assert speaker.ready

    with_speaker(scene)


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (SpeechOrder("Hello.", mode="sft"), "mode"),
        (SpeechOrder("Hello.", policy="equal"), "chunk_policy"),
        (SpeechOrder("Hello.", language="en"), "language"),
        (SpeechOrder("Hello.", sampling=Sampling(top_k=3)), "sampling"),
        (SpeechOrder("Hello.", instruct="Gently."), "instruct_text"),
        (SpeechOrder("..."), "text"),
        (SpeechOrder("a" * 20_001), "text"),
        (SpeechOrder("a\0"), "text"),
        (SpeechOrder("Hello.", voice=Recording(b"")), "reference audio"),
        (SpeechOrder("Hello.", voice=Recording(recording(0.1))), "reference audio"),
        (SpeechOrder("Hello.", voice="nobody"), "voice"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(order: SpeechOrder, field: str, folder: Path) -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        with pytest.raises((InvalidRequest, VoiceNotFound), match=f"^{field}:"):
            await speaker.speak(order)
        assert not fake.seen

    with_speaker(scene, folder)


@pytest.mark.parametrize(
    ("order", "field"), [(SpeechOrder("Hi.", seed=1), "seed"), (SpeechOrder("Hi.", speed=2), "speed")]
)
def test_a_model_without_our_inputs_takes_their_defaults_alone(
    monkeypatch: pytest.MonkeyPatch, order: SpeechOrder, field: str
) -> None:
    monkeypatch.setattr("tests.clients.fake_triton.INPUTS", INPUTS[:4])

    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        await heard(await speaker.speak(SpeechOrder("Hello.")))
        assert set(fake.seen[0]) == {"id", "target_text"}
        with pytest.raises(InvalidRequest, match=f"^{field}:"):
            await speaker.speak(order)

    with_speaker(scene)


def test_voices_are_the_folder_s_recordings(folder: Path) -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        voices = await speaker.voices("somebody")
        assert [(voice.name, voice.public, voice.transcript) for voice in voices] == [("anna", True, "What Anna says.")]
        await heard(await speaker.speak(SpeechOrder("Hello.", voice="anna")))
        assert fake.seen[0]["reference_text"] == "What Anna says."
        assert fake.seen[0]["reference_wav_len"].item() == 16_000
        assert fake.seen[0]["reference_wav"].shape == (1, 16_000)
        own = Recording(recording(rate=8_000), "Mine.")
        await heard(await speaker.speak(SpeechOrder("Hello.", voice=own)))
        assert fake.seen[1]["reference_text"] == "Mine."
        assert fake.seen[1]["reference_wav"].shape == (1, 16_000)
        (folder / "default.wav").write_bytes(recording(2.0))
        await heard(await speaker.speak(SpeechOrder("Hello.")))
        assert fake.seen[2]["reference_wav"].shape == (1, 32_000)
        with pytest.raises(Forbidden, match=r"NAME\.wav"):
            await speaker.add_voice("", "new", own)
        with pytest.raises(Forbidden, match="folder"):
            await speaker.remove_voice("", "anna")

    with_speaker(scene, folder)


def test_without_a_folder_there_is_the_server_s_own_voice() -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        assert await speaker.voices("") == []
        with pytest.raises(VoiceNotFound):
            await speaker.speak(SpeechOrder("Hello.", voice="anna"))
        with pytest.raises(Forbidden, match="--reference-dir"):
            await speaker.remove_voice("", "anna")

    with_speaker(scene)


def test_a_recording_that_cannot_be_used_is_named(folder: Path) -> None:
    (folder / "bad.wav").write_bytes(b"noise")

    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        with pytest.raises(InvalidAudio, match=r"^voice bad:"):
            await speaker.speak(SpeechOrder("Hello.", voice="bad"))

    with_speaker(scene, folder)


def test_a_text_that_cannot_be_read_ends_the_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(pieces: Iterator[str]) -> Iterator[Sentence]:
        raise KeyError("a defect")

    monkeypatch.setattr("vivavoce.doors.bridge.sentence_source.located_sentences", defective)

    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        stream = await speaker.speak(SpeechOrder(None))
        with pytest.raises(StageFailed, match="internal error"):
            await asyncio.wait_for(heard(stream), WAIT_S)

    with_speaker(scene)


def test_who_leaves_while_the_folder_is_read_lets_nobody_in_beside(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    entered, go_on, both = threading.Event(), threading.Event(), threading.Lock()
    overlapped = []

    def look(self: VoicesFolder) -> list[VoiceSummary]:
        if not both.acquire(blocking=False):
            overlapped.append(True)
            return []
        entered.set()
        assert go_on.wait(WAIT_S)
        both.release()
        return []

    monkeypatch.setattr(VoicesFolder, "voices", look)

    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        leaving = asyncio.ensure_future(speaker.voices(""))
        assert await asyncio.to_thread(entered.wait, WAIT_S)
        leaving.cancel()
        await asyncio.wait({leaving})
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        await speaker.voices("")
        assert not overlapped

    with_speaker(scene, folder)


def test_a_server_that_says_nonsense_is_away_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    async def run(fake: Watched) -> None:
        nonlocal now
        speaker = await TritonSpeaker.open(fake.address, None, clock=lambda: now)
        with monkeypatch.context() as patch:
            patch.setattr("vivavoce.clients.triton.connection.served_model", lambda fields: {}["dtype"])
            now += FRESH_S
            assert speaker.ready  # as it was found last
            assert speaker._checking is not None
            await speaker._checking
            with pytest.raises(EngineStopped, match="is away"):
                await speaker.speak(SpeechOrder("Hello."))
        await heard(await speaker.speak(SpeechOrder("Hello.")))
        await speaker.close(0.0)

    with serving(Watched()) as fake:
        assert isinstance(fake, Watched)
        asyncio.run(run(fake))


def test_a_server_that_goes_and_comes_back() -> None:
    now = 0.0

    async def checked(speaker: TritonSpeaker) -> bool:
        """Ready, as a look that has had its time found it."""
        nonlocal now
        now += FRESH_S
        _ = speaker.ready
        if speaker._checking is not None:
            await speaker._checking
        return speaker.ready

    async def run(fake: Watched) -> None:
        speaker = await TritonSpeaker.open(fake.address, None, clock=lambda: now)
        assert speaker.ready
        fake.gone = True
        assert speaker.ready  # it was looked at just now
        assert not await checked(speaker)
        with pytest.raises(EngineStopped, match="is away") as away:
            await speaker.speak(SpeechOrder("Hello."))
        assert fake.address not in str(away.value)  # clients need not know it
        fake.gone = False
        await heard(await speaker.speak(SpeechOrder("Hello.")))
        assert await checked(speaker)
        await speaker.close(0.0)
        assert not speaker.ready
        with pytest.raises(EngineStopped, match="shutting down"):
            await speaker.speak(SpeechOrder("Hello."))

    with serving(Watched()) as fake:
        assert isinstance(fake, Watched)
        asyncio.run(run(fake))


def test_a_stream_to_a_server_that_is_away_says_so_and_readiness_follows() -> None:
    async def run() -> None:
        with serving(Watched()) as fake:
            speaker = await TritonSpeaker.open(fake.address, None)
        stream = await speaker.speak(SpeechOrder("Hello."))
        with pytest.raises(EngineStopped, match="is away") as told:
            await heard(stream)
        assert "127.0.0.1" not in str(told.value)
        assert not speaker.ready
        await speaker.close(0.0)

    asyncio.run(run())


def test_a_server_that_is_not_there_at_the_start_is_an_error() -> None:
    async def run(address: str, model: str | None) -> None:
        with pytest.raises(EngineStopped, match=r"^upstream:"):
            await TritonSpeaker.open(address, None, model=model)

    with serving(FakeTriton()) as fake:
        asyncio.run(run(fake.address, "other"))
    asyncio.run(run(fake.address, None))


def test_a_close_waits_for_what_is_spoken() -> None:
    async def scene(speaker: TritonSpeaker, fake: Watched) -> None:
        stream = await speaker.speak(SpeechOrder("Hello."))
        listening = asyncio.create_task(heard(stream))
        closing = asyncio.create_task(speaker.close(WAIT_S))
        await closing
        assert len((await listening)[1]) == len(WHOLE)

    with_speaker(scene)
