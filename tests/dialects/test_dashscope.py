"""What clients of DashScope, CosyVoice's cloud, send and expect."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.server.fake_backend import FakeBackend, FakeStream, Gate, Unguided
from tests.server.http.websocket_serving import LATE_S, FakeKeys, connected, ending_of, send, serving
from vivavoce.engine.request import AudioChunk, Word
from vivavoce.errors import Overloaded
from vivavoce.frontend.speech import INSTRUCTIONS_LEFT_OUT, SpeechEvent, SpeechRequest
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.server.http import ws_session
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.settings import RequestsSection
from vivavoce_dialects.dashscope import MAX_WORDS, DashScopeForm

PATH = "/api-ws/v1/inference"
TASK = "2bf83b9abaeb4fda8d9a000000000000"
USUAL = {
    **{"voice": "anna", "volume": 50, "text_type": "PlainText", "sample_rate": 24_000, "rate": 1.0, "format": "pcm"},
    **{"pitch": 1.0, "seed": 0, "type": 0},
}
"""The parameters that the cloud's package always sends."""


def run_task(task: str = TASK, model: str = "cosyvoice-v2", **parameters: Any) -> dict[str, Any]:
    kind = {"model": model, "task_group": "audio", "task": "tts", "function": "SpeechSynthesizer"}
    payload = {**kind, "input": {}, "parameters": {**USUAL, **parameters}}
    return {"header": {"action": "run-task", "task_id": task, "streaming": "duplex"}, "payload": payload}


def continue_task(task: str = TASK, **given: Any) -> dict[str, Any]:
    header = {"action": "continue-task", "task_id": task, "streaming": "duplex"}
    return {"header": header, "payload": {"model": "cosyvoice-v2", "input": given}}


def finish_task(task: str = TASK, **given: Any) -> dict[str, Any]:
    return {
        "header": {"action": "finish-task", "task_id": task, "streaming": "duplex"},
        "payload": {"input": given},
    }


def event_of(frame: dict[str, Any] | bytes) -> str:
    return "audio" if isinstance(frame, bytes) else str(frame["header"]["event"])


async def until(client: ClientConnection, event: str) -> list[Any]:
    """All frames up to this event; audio as bytes."""
    found: list[Any] = []
    while not found or event_of(found[-1]) != event:
        frame = await asyncio.wait_for(client.recv(), LATE_S)
        found.append(frame if isinstance(frame, bytes) else json.loads(frame))
        assert event == "task-failed" or event_of(found[-1]) != "task-failed", found[-1]
    return found


async def spoken(client: ClientConnection, *pieces: str, task: str = TASK, **parameters: Any) -> list[Any]:
    """A whole task."""
    await send(client, run_task(task, **parameters))
    begun = await until(client, "task-started")
    await send(client, *(continue_task(task, text=piece) for piece in pieces), finish_task(task))
    return begun + await until(client, "task-finished")


def audio_of(frames: list[Any]) -> bytes:
    return b"".join(frame for frame in frames if isinstance(frame, bytes))


async def failure_of(client: ClientConnection, *messages: dict[str, Any]) -> dict[str, Any]:
    """The header of the failure that these end in; nothing follows it, and the connection is closed."""
    await send(client, *messages)
    failed = (await until(client, "task-failed"))[-1]
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(client.recv(), LATE_S)
    header: dict[str, Any] = failed["header"]
    return header


async def test_a_task_in_pieces() -> None:
    async with connected(path=PATH) as (client, served):
        frames = await spoken(client, "Hello ", "there. You.", rate=1.25, seed=9, language_hints=["en"])
        assert len(audio_of(frames)) == 480 * len("Hello there. You.")
        events = [frame for frame in frames if isinstance(frame, dict)]
        assert {frame["header"]["task_id"] for frame in events} == {TASK}
        # The stand-in says each piece as sentences of its own.
        sentences = [frame["payload"]["output"] for frame in events if event_of(frame) == "result-generated"]
        told = [(one["type"], one["sentence"]["index"], one["original_text"]) for one in sentences]
        places = enumerate(("Hello ", "there. ", "You."))
        assert told == [(f"sentence-{kind}", place, text) for place, text in places for kind in ("begin", "end")]
        assert event_of(frames[0]) == "task-started"
        assert frames[-1]["payload"]["usage"] == {"characters": len("Hello there. You.")}
        assert frames[-1]["header"]["attributes"] == {"request_uuid": TASK, "finish_reason": "stop"}
        (order,) = served.speaker.orders
        assert (order.voice, order.speed, order.seed, order.language) == ("anna", 1.25, 9, "en")
        record = served.record(TASK)
        assert (record.protocol, record.reason) == ("websocket", "stop")


async def test_tasks_one_after_the_other_on_a_connection_and_the_address_with_a_slash() -> None:
    async with connected(path=PATH + "/") as (client, served):
        for task in ("one", "two", "two"):
            assert len(audio_of(await spoken(client, f"It is {task}.", task=task))) == 480 * len("It is one.")
        assert len(served.speaker.orders) == 3


async def test_text_that_comes_with_the_task_and_a_flush_in_the_middle() -> None:
    async with connected(path=PATH) as (client, _):
        begin = run_task()
        begin["payload"]["input"] = {"text": "One. "}
        await send(client, begin, continue_task(flush=True))
        frames: list[Any] = []
        while len(audio_of(frames)) < 480 * 5:
            frames += await until(client, "audio")
        await send(client, continue_task(text="Two.", flush=True), finish_task())
        frames += await until(client, "task-finished")
        assert len(audio_of(frames)) == 480 * len("One. Two.")
        begins = [frame["payload"]["output"] for frame in frames if event_of(frame) == "result-generated"]
        assert [(one["sentence"]["index"], one["original_text"]) for one in begins[::2]] == [(0, "One. "), (1, "Two.")]


@pytest.mark.parametrize(
    ("name", "asked", "codec", "rate"),
    [
        ("mp3", {"format": "Default", "sample_rate": 0}, "mp3float", 22_050),
        ("wav", {"format": "wav", "sample_rate": 16_000}, "pcm_s16le", 16_000),
        ("ogg", {"format": "opus", "sample_rate": 48_000, "bit_rate": 32}, "opus", 48_000),
        ("mp3", {"format": "mp3", "sample_rate": 44_100, "bit_rate": 0}, "mp3float", 44_100),
    ],
)
async def test_formats(name: str, asked: dict[str, Any], codec: str, rate: int) -> None:
    async with connected(path=PATH) as (client, _):
        content = audio_of(await spoken(client, "Hello there. " * 8, **asked))
    with av.open(io.BytesIO(content), format=name) as container:
        found = container.streams.audio[0]
        assert (found.codec_context.name, found.rate) == (codec, rate)


async def test_volume_is_a_gain_that_does_not_clip() -> None:
    peaks = {}
    for volume in (0, 25, 50, 100):
        async with connected(path=PATH) as (client, _):
            audio = audio_of(await spoken(client, "Hello there.", volume=volume))
        peaks[volume] = np.abs(np.frombuffer(audio, np.int16).astype(int)).max() / 32_768
    assert peaks == pytest.approx({0: 0.0, 25: 0.15, 50: 0.3, 100: 0.6}, abs=0.001)


class Timed(FakeBackend):
    """The first audio of a text tells of the end of a word."""

    async def speak(self, order: SpeechRequest) -> FakeStream:
        stream = await super().speak(order)
        return TimedStream(order, stream.gate)


class TimedStream(FakeStream):
    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        words: tuple[Word, ...] = (Word("am", 6, 8, 0.03, 0.0504),)
        async for event in super().__aiter__():
            if isinstance(event, AudioChunk) and event.segment == 1:
                event, words = replace(event, words=words), ()
            yield event


async def test_words_come_with_the_end_of_their_sentence() -> None:
    async with connected(Timed(), PATH) as (client, served):
        frames = await spoken(client, "Oh. I am. Yes.", word_timestamp_enabled=True)
        assert served.speaker.orders[0].word_times
    sentences = [frame["payload"]["output"] for frame in frames if event_of(frame) == "result-generated"]
    timed = {"text": "am", "begin_index": 2, "end_index": 4, "begin_time": 30, "end_time": 50}
    assert [one["sentence"]["words"] for one in sentences] == [[], [], [], [timed], [], []]
    assert sentences[3]["original_text"] == "I am. "


def test_a_character_in_two_halves_is_one_in_the_sentence() -> None:
    form = DashScopeForm()
    for message in (run_task(), continue_task(text="Hi \ud83d"), continue_task(text="\ude00 you.")):
        form.messages(message)
    word = {"text": "you", "start_character": 6, "end_character": 9, "start": 0.5, "end": 0.8}
    form.render({"type": "words", "words": [word]}, TASK)
    told = form.render({"type": "segment_done", "segment": 0, "start_character": 0, "end_character": 10}, TASK)
    assert told is not None
    output = json.loads(told)["payload"]["output"]
    assert output["original_text"] == "Hi \U0001f600 you."
    (timed,) = output["sentence"]["words"]
    assert output["original_text"][timed["begin_index"] : timed["end_index"]] == "you"


async def test_what_cannot_be_followed_is_told_when_the_task_starts() -> None:
    async with connected(Unguided(), PATH) as (client, served):
        await send(client, run_task(instruction="Whisper."))
        (started,) = await until(client, "task-started")
        assert started["header"]["attributes"]["warnings"] == [INSTRUCTIONS_LEFT_OUT]
        assert served.speaker.orders[0].instruct is None
    async with connected(path=PATH) as (client, served):
        await spoken(client, "Hi.", instruction="Whisper.")
        assert served.speaker.orders[0].instruct == "Whisper."


class Pinyin(FakeBackend):
    @property
    def about(self) -> ModelInfo:
        return replace(super().about, marks=frozenset({"[c]", "[ǎo]", "[d]", "[ì]"}))


async def test_words_of_a_task_are_its_lexicon() -> None:
    fix = {"pronunciation": [{"草地": "cao3 di4"}], "replace": [{"SQL": "sequel"}, {"Ng": "Eng"}]}
    async with connected(Pinyin(), PATH) as (client, served):
        await spoken(client, "草地 SQL.", hot_fix=fix)
        assert served.speaker.orders[0].lexicon == {"草地": "[c][ǎo][d][ì]", "SQL": "sequel", "Ng": "Eng"}


@pytest.mark.parametrize("model", ["cosyvoice-v1", "cosyvoice-v3.5-plus", "cosyvoice-v3-flash", "fake", "tts-1", ""])
async def test_names_of_models_that_are_answered_to(model: str) -> None:
    async with connected(path=PATH) as (client, _):
        await send(client, run_task(model=model))
        await until(client, "task-started")


P = "payload.parameters."


@pytest.mark.parametrize(
    ("begin", "code", "message"),
    [
        (run_task(voice="nobody"), "InvalidParameter", "voice: 'nobody' is not registered"),
        (run_task(model="sambert-zhichu-v1"), "ModelNotFound", "model: 'sambert-zhichu-v1' is not served here"),
        (run_task(rate=2.5), "InvalidParameter", f"{P}rate: input should be less than or equal to 2 .given: '2.5'"),
        (run_task(volume=101), "InvalidParameter", f"{P}volume: .* 100 .given: '101'"),
        (run_task(pitch=1.2), "InvalidParameter", f"{P}pitch: 1.2 is not supported; leave it at 1"),
        (run_task(type=1), "InvalidParameter", f"{P}type: "),
        (run_task(format="amr"), "InvalidParameter", f"{P}format: .*'opus' .given: 'amr'"),
        (run_task(sample_rate=11_025), "InvalidParameter", f"{P}sample_rate: 11025 Hz is not supported; choose one of"),
        (run_task(format="opus", bit_rate=6), "InvalidParameter", f"{P}bit_rate: 6000 bit/s is outside of 16000"),
        (run_task(bit_rate=32), "InvalidParameter", f"{P}bit_rate: pcm has no bitrate"),
        (run_task(language_hints=["th"]), "InvalidParameter", f"{P}language_hints: 'th' is not one of zh, en"),
        (run_task(instruction="a" * 4_097), "InvalidParameter", f"{P}instruction: .* 4096 "),
        (run_task(phoneme_timestamp_enabled=True), "InvalidParameter", f"{P[:-1]}: phoneme_timestamp_enabled are unkn"),
        (
            run_task(hot_fix={"pronunciation": [{"草地": "cao3 di4"}]}),
            "InvalidParameter",
            f"{P}hot_fix.pronunciation: 'cao3 di4' is not pinyin that the served model knows; .* hot_fix.replace",
        ),
        (run_task(hot_fix={"replace": [{"a": ""}]}), "InvalidParameter", f"{P}hot_fix: 'a' has the respelling ''"),
        (run_task(hot_fix={"replace": [{"a": "\a"}]}), "InvalidParameter", f"{P}hot_fix: control character"),
        (
            run_task(hot_fix={"replace": [{str(n): "x" for n in range(MAX_WORDS + 1)}]}),
            "InvalidParameter",
            f"{P}hot_fix: 501 words are more than 500",
        ),
        (run_task(hot_fix={"replaced": []}), "InvalidParameter", f"{P}hot_fix.replaced: "),
        (run_task(task=""), "InvalidParameter", "header.task_id: "),
        ({**run_task(), "payload": {"task": "asr"}}, "InvalidParameter", "payload.task: input should be 'tts'"),
        ({"header": {"action": "run"}}, "InvalidParameter", "header.action: .*'finish-task' .given: 'run'"),
        ({"type": "start"}, "InvalidParameter", "header: field required"),
        (continue_task(text="Hi."), "InvalidParameter", f"header.task_id: no task '{TASK}' is running; send run-task"),
        (finish_task(), "InvalidParameter", "header.task_id: no task"),
    ],
)
async def test_what_cannot_be_done_names_the_field_and_ends_the_connection(
    begin: dict[str, Any], code: str, message: str
) -> None:
    async with connected(path=PATH) as (client, served):
        header = await failure_of(client, begin)
        assert (header["event"], header["error_code"]) == ("task-failed", code)
        assert re.match(message, header["error_message"]), header["error_message"]
        assert header["task_id"] == begin.get("header", {}).get("task_id", "")
        assert client.close_code == ws_session.POLICY
        assert served.dispatcher.active == 0


async def test_unknown_parameters_can_be_ignored_with_a_warning() -> None:
    about, rules = FakeBackend().about, RequestsSection(unknown_fields="ignore")
    start, *_ = DashScopeForm().messages(run_task(enable_aigc_tag=True, seed=None))
    wanted = await start.request(None, ANONYMOUS, about, rules=rules)  # type: ignore[union-attr]
    assert wanted.notes == ("payload.parameters: enable_aigc_tag are unknown and were ignored",)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (run_task("another"), f"header.task_id: '{TASK}' is still running"),
        (continue_task(), "payload.input.text: field required"),
        (continue_task(text="a" * 20_001), "payload.input.text: .* 20000 "),
        (continue_task("another", text="Hi."), "header.task_id: no task 'another' is running"),
        (continue_task(text="a\x00"), "text: holds U\\+0000"),
        ({"header": None}, "header: "),
    ],
)
async def test_a_mistake_in_the_middle_fails_the_task(later: dict[str, Any], message: str) -> None:
    async with connected(FakeBackend(gate=Gate(1)), PATH) as (client, served):
        await send(client, run_task(), continue_task(text="A long sentence."))
        await until(client, "audio")
        header = await failure_of(client, later)
        assert re.match(message, header["error_message"]), header["error_message"]
        await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
        await served.dispatcher.drain(LATE_S)


async def test_no_text_comes_after_the_end_but_a_cancel_may() -> None:
    async with connected(FakeBackend(gate=Gate(1)), PATH) as (client, _):
        header = await failure_of(
            client, run_task(), continue_task(text="A long sentence."), finish_task(), continue_task(text="More.")
        )
        assert header["error_message"].startswith("header.action: continue-task comes after finish-task")
    async with connected(FakeBackend(gate=Gate(1)), PATH) as (client, served):
        await send(client, run_task(), continue_task(text="A long sentence."), finish_task())
        await until(client, "audio")
        await send(client, finish_task(directive="cancel"))
        await until(client, "task-finished")
        assert served.speaker.streams[0].cancelled.is_set()


async def test_text_without_a_flush_has_the_limit_of_all_doors() -> None:
    async with connected(FakeBackend(gate=asyncio.Event()), PATH) as (client, _):
        pieces = (continue_task(text="a" * 15_000) for _ in range(2))
        header = await failure_of(client, run_task(), *pieces)
        assert header["error_message"].startswith("text: 30000 characters without a flush are more than the limit")


async def test_messages_that_are_no_json_or_too_large() -> None:
    async with connected(path=PATH) as (client, _):
        await client.send("{")
        header = await failure_of(client)
        assert header["error_message"].startswith("message: is not JSON")
    async with connected(path=PATH, max_body_bytes=65_536) as (client, _):
        header = await failure_of(client, run_task(instruction="a" * 65_536))
        assert header["error_message"].startswith("message: 659")
        assert header["attributes"]["code"] == "too_large"
        assert client.close_code == ws_session.TOO_BIG


async def test_a_cancel_stops_the_speech_and_the_connection_takes_the_next_task() -> None:
    gate = Gate(1)
    async with connected(FakeBackend(gate=gate), PATH) as (client, served):
        await send(client, run_task(), continue_task(text="A long sentence."))
        await until(client, "audio")
        await send(client, finish_task(directive="cancel"), continue_task(text="Late."), finish_task())
        finished = (await until(client, "task-finished"))[-1]
        assert finished["header"]["attributes"]["finish_reason"] == "cancelled"
        assert served.speaker.streams[0].cancelled.is_set()
        assert served.dispatcher.active == 0
        gate.set()
        assert len(audio_of(await spoken(client, "Next.", task="next"))) == 480 * len("Next.")
        assert len(served.speaker.orders) == 2


async def test_who_leaves_frees_the_stream() -> None:
    async with serving(FakeBackend(gate=Gate(1))) as served:
        async with served.connect(PATH) as client:
            await send(client, run_task(), continue_task(text="A long sentence."), finish_task())
            await until(client, "audio")
            client.transport.abort()
        await asyncio.wait_for(served.speaker.streams[0].cancelled.wait(), LATE_S)
        await served.dispatcher.drain(LATE_S)
        assert served.dispatcher.active == 0


async def test_no_room_is_told_at_once_and_a_failure_in_the_middle_ends_the_task() -> None:
    busy = FakeBackend(refuses_with=Overloaded("server: it is busy; try again in 3 s"))
    async with connected(busy, PATH) as (client, _):
        header = await failure_of(client, run_task())
        assert (header["error_code"], header["attributes"]["code"]) == ("Throttling.RateQuota", "overloaded")
        assert header["error_message"] == "server: it is busy; try again in 3 s"
    async with connected(FakeBackend(fails_after=1), PATH) as (client, served):
        header = await failure_of(client, run_task(), continue_task(text="A long sentence."), finish_task())
        assert (header["error_code"], header["error_message"]) == ("ServiceUnavailable", "engine: it broke")
        assert served.record(TASK).error_code == "engine_stopped"


@pytest.mark.parametrize("headers", [{}, {"authorization": "bearer wrong"}], ids=["none", "wrong"])
async def test_a_wrong_key_is_told_in_answer_to_the_first_task(headers: dict[str, str]) -> None:
    async with connected(path=PATH, keys=FakeKeys(), headers=headers) as (client, _):
        header = await failure_of(client, run_task())
        assert (header["task_id"], header["error_code"]) == (TASK, "InvalidApiKey")
        assert client.close_code == ws_session.NO_KEY


async def test_a_key_in_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_session, "KEY_S", 0.0)  # it holds for connections without a key
    keys = FakeKeys()
    async with connected(path=PATH, keys=keys, headers={"authorization": "bearer secret"}) as (client, _):
        assert audio_of(await spoken(client, "Hi."))
        keys.known = False
        assert (await failure_of(client, run_task("next")))["error_code"] == "InvalidApiKey"
    async with connected(path=PATH, keys=keys, headers={"authorization": "bearer wrong"}) as (client, _):
        assert (await ending_of(client))[0] == ws_session.NO_KEY


async def test_who_brings_no_text_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_session, "IDLE_S", 0.05)
    async with connected(path=PATH) as (client, served):
        header = await failure_of(client, run_task())
        assert header["error_message"] == "idle: no text came for 0.05 s; send finish-task when all of it has come"
        assert served.dispatcher.active == 0
    async with connected(path=PATH) as (client, _):
        code, reason = await ending_of(client)
        assert (code, reason.partition(":")[0]) == (ws_session.NORMAL, "idle")
