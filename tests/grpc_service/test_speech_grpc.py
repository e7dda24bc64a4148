"""`vivavoce.v1.Speech`, asked by real clients: text in, audio and marks out, voices, and what is refused."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any, cast

import av
import grpc
import grpc.aio
import pytest

from tests.grpc_service.calling import (
    SPEECH,
    TEXT,
    asked,
    calling,
    failing,
    heard,
    kinds,
    pairs,
    read,
    rest,
    sft,
    spoken,
)
from tests.server.fake_backend import FakeBackend, Gate, Unguided, Worded
from tests.server.fake_models import FakeEngines, routed
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import EngineStopped, OutOfMemory, Overloaded, StageFailed, VivavoceError
from vivavoce.frontend.speech import INSTRUCTIONS_LEFT_OUT, FinishReason, Recording, SpeechRequest
from vivavoce.server import utterance
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.keys import KeyRing, add_key, new_entry, new_key
from vivavoce.server.rate_limiter import ANONYMOUS
from vivavoce.server.settings import ServerSection
from vivavoce_grpc import speech
from vivavoce_grpc.calls import Calls

FLUSH: dict[str, Any] = {"flush": {}}
WHOLE = asked(start={"text": TEXT})


async def test_one_message_suffices_and_its_text_is_read_as_a_whole() -> None:
    async with calling(FakeBackend(rate=22_050)) as caller:
        replies = await caller.answers(WHOLE, x_request_id="mine-1")
    assert kinds(replies) == ["started", "segment", "audio", "segment_done", "done"]
    started, done = replies[0].started, replies[-1].done
    assert (started.request_id, started.sample_rate, started.response_format) == ("mine-1", 22_050, "pcm")
    assert started.flow_steps == "official"
    assert heard(replies) == spoken(TEXT)
    assert (done.finish_reason, done.segments_spoken, done.segments_given) == ("stop", 1, 1)
    assert done.audio_seconds == pytest.approx(len(TEXT) * 240 / 22_050, abs=1e-6)
    assert caller.speaker.orders == [SpeechRequest(TEXT)]
    entry = caller.dispatcher.request_log.get("mine-1", ANONYMOUS)
    assert (entry.protocol, entry.reason, entry.characters) == ("grpc", FinishReason.STOP, len(TEXT))


async def test_no_message_holds_more_than_a_fifth_of_a_second() -> None:
    async with calling(FakeBackend(rate=8_000)) as caller:
        replies = await caller.answers(asked(start={"text": "Twenty letters long."}))
    sizes = [len(reply.audio.audio) for reply in replies if reply.WhichOneof("message") == "audio"]
    assert sizes == [3_200, 1_600] * 2


async def test_a_whole_text_is_done_whether_its_client_has_closed_its_side_or_not() -> None:
    async with calling(max_conc=1) as caller:
        for _ in range(20):
            call = caller.speak()
            await call.write(WHOLE)
            assert heard(await asyncio.wait_for(rest(call), 60)) == spoken(TEXT)
            assert await call.code() is grpc.StatusCode.OK


async def test_a_status_waits_for_the_message_that_is_on_its_way() -> None:
    """While the first one is sent gRPC refuses a status, and cancelling does not end that: the call would hang."""
    told: list[str] = []

    class Context:
        """Of a call whose second message is a mistake, which comes while the first answer is being sent."""

        def __init__(self) -> None:
            self._requests = [asked(start={}), asked(start={})]
            self._writing, self._went = asyncio.Event(), asyncio.Event()

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return ()

        def time_remaining(self) -> None:
            return None

        async def read(self) -> bytes:
            if len(self._requests) == 1:
                await self._writing.wait()
                asyncio.get_running_loop().call_later(0.01, self._went.set)
            return self._requests.pop(0)

        async def write(self, _: bytes) -> None:
            self._writing.set()
            try:
                await self._went.wait()
                told.append("sent")
            except asyncio.CancelledError:
                told.append("given up")
                raise

        async def abort(self, code: grpc.StatusCode, *_: object) -> None:
            told.append(code.name)
            raise grpc.aio.AbortError

    calls = Calls(RequestDispatcher(FakeBackend()), KeyRing(), ServerSection())
    with pytest.raises(grpc.aio.AbortError):
        await calls.serve(speech.speak, None, Context())  # type: ignore[arg-type]
    assert told == ["sent", "INVALID_ARGUMENT"]


async def test_every_field_of_a_start_is_what_is_ordered() -> None:
    recording = {"content": b"RIFF", "transcript": "Well."}
    how = {
        "mode": "instruct",
        "instructions": "Softly.",
        "speed": 1.5,
        "seed": 7,
        "language": "fr-CA",
        "reading": "official",
    }
    sampling = {"top_p": 0.5, "top_k": 5, "win_size": 3, "tau_r": 0.0, "min_ratio": 0.0, "max_ratio": 9.0}
    start = {**how, "recording": recording, "sampling": sampling, "chunk_policy": "equal", "text": TEXT}
    async with calling() as caller:
        await caller.answers(asked(start=start))
        await caller.answers(asked(start={"voice": "anna"}), asked(text=TEXT))
    del how["instructions"]
    assert caller.speaker.orders == [
        SpeechRequest(
            TEXT,
            Recording(b"RIFF", "Well."),
            instruct="Softly.",
            policy="equal",
            sampling=SamplingParams(**sampling),
            notes=("text: its language seems to be fr, and the model speaks zh, en, ja, ko only",),
            **how,
        ),
        SpeechRequest(None, "anna"),
    ]


async def test_a_start_chooses_its_model() -> None:
    default, mine = FakeEngines(), FakeEngines(name="mine", rate=22_050)
    router = routed(default, mine)
    await router.start()
    async with calling(cast(FakeBackend, router)) as caller:
        for model, engines, rate in (("tts-1", default, 24_000), ("mine", mine, 22_050)):
            replies = await caller.answers(asked(start={"text": TEXT, "model": model}))
            assert replies[0].started.sample_rate == rate
            assert len(engines.orders) == 1
        status, message, _ = await failing(caller.answers(asked(start={"text": TEXT, "model": "other"})))
        assert status == "NOT_FOUND"
        assert "use one of fake, mine" in message
    await router.close()


async def test_text_is_spoken_while_it_comes_and_marks_count_on_over_flushes() -> None:
    async with calling() as caller:
        call = caller.speak()
        await call.write(asked(text="One. "))  # a text as the first thing begins an utterance of defaults
        await call.write(asked(**FLUSH))
        early = [read("SpeakResponse", await call.read()) for _ in range(5)]
        assert kinds(early) == ["started", "segment", "audio", "segment_done", "flushed"]  # before there was more
        for piece in (" ", "Tw", "o. Three."):
            await call.write(asked(text=piece))
        await call.done_writing()
        late = await rest(call)
    assert heard(early + late) == spoken("One. ") + spoken(" ") + spoken("Tw") + spoken("o. ") + spoken("Three.")
    (first,) = [reply.segment_done for reply in early if reply.WhichOneof("message") == "segment_done"]
    assert (first.segment, first.start_character, first.end_character, first.start, first.end) == (0, 0, 5, 0.0, 0.05)
    ends = [reply.segment_done for reply in late if reply.WhichOneof("message") == "segment_done"]
    assert [(mark.segment, mark.start_character, mark.end_character) for mark in ends][-1][1:] == (11, 17)
    assert {reply.audio.segment for reply in early if reply.WhichOneof("message") == "audio"} == {0}
    assert {reply.audio.segment for reply in late if reply.WhichOneof("message") == "audio"} == {
        m.segment for m in ends
    }
    assert ends[-1].end == late[-1].done.audio_seconds == 0.17


@pytest.mark.parametrize(("given", "asked_for"), [({}, None), ({"guard": False}, False), ({"guard": True}, True)])
async def test_the_guard_is_left_to_the_model_or_asked_for(given: dict[str, bool], asked_for: bool | None) -> None:
    async with calling(FakeBackend()) as caller:
        await caller.answers(asked(start={"text": TEXT, **given}))
        assert caller.speaker.orders[0].guard is asked_for


async def test_words_come_before_their_audio_and_the_end_tells_how_it_was_spoken() -> None:
    async with calling(Worded()) as caller:
        replies = await caller.answers(asked(start={"text": "Hi there. You!", "word_times": True}))
        assert caller.speaker.orders[0].word_times
        plain = await caller.answers(asked(start={"text": "Hi there. You!"}))
    assert kinds(replies)[:4] == ["started", "segment", "words", "audio"]
    words = [one for reply in replies for one in reply.words.words]
    assert [(one.text, one.start_character, one.end_character) for one in words] == [
        ("Hi", 0, 2),
        ("there.", 3, 9),
        ("You!", 10, 14),
    ]
    assert [(one.start, one.end) for one in words] == [(0.0, 0.02), (0.03, 0.09), (0.1, 0.14)]
    told = replies[-1].done.delivery
    assert (told.spoken, list(told.missing), list(told.faults), list(told.mended)) == (
        0.5,
        ["there,"],
        ["skips"],
        ["loops"],
    )
    assert (told.pause_s, told.HasField("length")) == (0.25, False)
    assert "words" not in kinds(plain)
    assert not plain[-1].done.HasField("delivery")


@pytest.mark.parametrize(("played", "until"), [({"played_ms": 50}, (9, 50)), ({}, (9, 100))])
async def test_a_cancel_tells_how_far_the_text_was_heard(played: dict[str, int], until: tuple[int, int]) -> None:
    async with calling(Worded(gate=Gate(1)), max_conc=1) as caller:
        call = caller.speak(x_request_id="cut-2")
        await call.write(asked(start={"text": "Hi there. You know it well!", "word_times": True}))
        while read("SpeakResponse", await call.read()).WhichOneof("message") != "audio":
            pass
        await call.write(asked(cancel=played))
        *_, last = await asyncio.wait_for(rest(call), 60)
        assert await call.code() is grpc.StatusCode.OK
        assert ("finish-reason", "cancelled") in pairs(await call.trailing_metadata()).items()
        told = last.cancelled
        assert (told.request_id, told.audio_seconds) == ("cut-2", pytest.approx(0.1))
        assert (told.reached.segment, told.reached.to_character) == (0, 10)
        assert (told.spoken_until.character, told.spoken_until.ms) == until
        assert caller.dispatcher.request_log.get("cut-2", ANONYMOUS).reason is FinishReason.CANCELLED
        caller.speaker.gate = None
        assert heard(await caller.answers(WHOLE)) == spoken(TEXT)


async def test_a_cancel_before_any_audio_and_one_after_the_end() -> None:
    async with calling(FakeBackend(gate=Gate(0))) as caller:
        replies = await caller.answers(asked(start={"text": TEXT}), asked(cancel={}))
        assert (replies[-1].cancelled.audio_seconds, replies[-1].cancelled.HasField("reached")) == (0.0, False)
        caller.speaker.gate = None
        call = caller.speak()
        await call.write(WHOLE)
        replies = await rest(call)
        assert replies[-1].done.finish_reason == "stop"


@pytest.mark.parametrize(("form", "rate"), [("opus", 48_000), ("mp3", 24_000), ("flac", 16_000)])
async def test_every_format_of_http_at_its_rates(form: str, rate: int) -> None:
    async with calling() as caller:
        start = {"text": TEXT * 8, "response_format": form, "sample_rate": rate}
        replies = await caller.answers(asked(start=start))
    assert (replies[0].started.sample_rate, replies[0].started.response_format) == (rate, form)
    with av.open(io.BytesIO(heard(replies))) as file:
        (stream,) = file.streams
        samples = sum(frame.samples for frame in file.decode(stream))
    assert samples / rate == pytest.approx(len(TEXT) * 8 / 100, abs=0.15)


async def test_telephones_get_a_byte_a_sample() -> None:
    async with calling() as caller:
        replies = await caller.answers(asked(start={"text": TEXT, "response_format": "ulaw"}))
    assert (replies[0].started.sample_rate, len(heard(replies))) == (8_000, len(TEXT) * 80)


async def test_what_is_not_as_wished_is_told_and_nothing_to_say_is_a_silence() -> None:
    async with calling(Unguided()) as caller:
        replies = await caller.answers(asked(start={"text": TEXT, "instructions": "Softly."}))
        assert list(replies[0].started.warnings) == [INSTRUCTIONS_LEFT_OUT]
        assert caller.speaker.orders[0].instruct is None
        assert set(heard(await caller.answers(asked(start={"text": "  "})))) == {0}


@pytest.mark.parametrize(
    ("requests", "code", "message"),
    [
        ([], "invalid_request", "message: is empty or unknown"),
        (
            [b"\xff\xff"],
            "invalid_request",
            "request: its 2 bytes are not a vivavoce.v1.SpeakRequest; make it with code",
        ),
        ([asked(start={"speed": 3})], "invalid_request", "speed: 3"),
        ([asked(start={"mode": "loud"})], "invalid_request", "mode: 'loud' is unknown"),
        ([asked(start={"seed": 2**60})], "invalid_request", "seed: 1152921504606846976"),
        ([asked(start={"language": "xx"})], "invalid_request", "language: 'xx'"),
        ([asked(start={"reading": "loud"})], "invalid_request", "reading: 'loud'"),
        ([asked(start={"sampling": {"top_k": 0}})], "invalid_request", "top_k"),
        ([asked(start={"response_format": "midi"})], "invalid_request", "response_format: 'midi' is unknown"),
        ([asked(start={"sample_rate": 9})], "invalid_request", "sample_rate: 9 Hz is not supported"),
        ([asked(start={"voice": "nobody"})], "voice_not_found", "voice: 'nobody' is not registered"),
        ([asked(start={}), asked(start={})], "invalid_request", "start: is not the first message; make a call"),
        ([WHOLE, asked(text="More.")], "invalid_request", "text: it comes after the end"),
        ([asked(start={}), asked(text="a" * 20_001)], "invalid_text", "text: 20001 characters without a flush"),
        ([asked(text="Hello.\0")], "invalid_text", "text: holds U+0000; leave it out"),
    ],
)
async def test_what_cannot_be_done_is_refused(requests: list[bytes], code: str, message: str) -> None:
    async with calling(FakeBackend(gate=Gate(3)), max_conc=1) as caller:
        status, details, ending = await failing(caller.answers(*requests, x_request_id="bad-1"))
        assert status == ("NOT_FOUND" if code == "voice_not_found" else "INVALID_ARGUMENT")
        assert (details[: len(message)], ending["error-code"]) == (message, code)
        assert ending["x-request-id"] == "bad-1"
        assert "retry-after-ms" not in ending
        assert heard(await caller.answers(asked(start={"text": "Hello."})))  # it took nobody's place


@pytest.mark.parametrize(
    ("error", "status", "milliseconds"),
    [
        (Overloaded("engine: is full; try again in 2.5 s", 2.5), "RESOURCE_EXHAUSTED", "2500"),
        (EngineStopped("engine: it broke; ask again"), "UNAVAILABLE", "5000"),
        (OutOfMemory("memory: is too small; ask for less"), "RESOURCE_EXHAUSTED", None),
        (StageFailed("flow: failed; ask again"), "INTERNAL", None),
    ],
)
async def test_failures_have_their_status_and_tell_when_to_come_again(
    error: VivavoceError, status: str, milliseconds: str | None
) -> None:
    async with calling(FakeBackend(refuses_with=error)) as caller:
        found, details, ending = await failing(caller.answers(WHOLE))
    assert (found, details, ending["error-code"]) == (status, str(error), error.code)
    assert ending.get("retry-after-ms") == ending.get("grpc-retry-pushback-ms") == milliseconds


async def test_a_failure_in_the_middle_is_no_whole_answer() -> None:
    async with calling(FakeBackend(fails_after=2)) as caller:
        call, replies = caller.speak(x_request_id="cut-1"), []

        async def hear() -> None:
            await call.write(WHOLE)
            async for answer in call:
                replies.append(read("SpeakResponse", answer))

        status, details, ending = await failing(hear())
    assert (status, details, ending["error-code"]) == ("UNAVAILABLE", "engine: it broke", "engine_stopped")
    assert spoken(TEXT).startswith(heard(replies))
    assert "done" not in kinds(replies)
    entry = caller.dispatcher.request_log.get("cut-1", ANONYMOUS)
    assert (entry.reason, entry.error_code) == (FinishReason.ERROR, "engine_stopped")


async def test_what_nobody_foresaw_is_told_without_its_innards(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeBackend):
        async def speak(self, order: SpeechRequest) -> Any:
            raise KeyError("a secret")

        async def voices(self, owner: str) -> Any:
            raise KeyError("a secret")

    async with calling(Broken(), max_conc=1) as caller:
        for call in (caller.answers(WHOLE), caller.ask("ListVoices", "ListVoicesResponse", b"")):
            status, details, _ = await failing(call)
            assert status == "INTERNAL"
            assert "secret" not in details
    assert "a secret" in caplog.text


async def test_a_client_who_cancels_frees_its_place_at_once_which_is_one_of_the_ports() -> None:
    gate = Gate(1)
    async with calling(FakeBackend(gate=gate), max_conc=1) as caller:
        call = caller.speak(x_request_id="left-1")
        await call.write(WHOLE)
        while read("SpeakResponse", await call.read()).WhichOneof("message") != "audio":
            pass
        status, details, ending = await failing(caller.answers(WHOLE))
        assert (status, ending["error-code"], ending["retry-after-ms"]) == ("RESOURCE_EXHAUSTED", "overloaded", "1000")
        assert details == "calls: 1 are being answered, which is the limit (max_conc); try again soon"
        code, _, _ = await caller.refused(sft(TEXT))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        call.cancel()
        (stream,) = caller.speaker.streams
        await stream.cancelled.wait()
        gate.set()
        assert heard(await caller.answers(WHOLE)) == spoken(TEXT)
        entry = caller.dispatcher.request_log.get("left-1", ANONYMOUS)
        assert (entry.reason, entry.audio_s) == (FinishReason.CANCELLED, pytest.approx(0.1))


async def test_a_client_who_sends_and_hears_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "IDLE_S", 0.1)
    async with calling(max_conc=1) as caller:
        for requests in ([asked(start={})], [asked(text="Hello."), asked(**FLUSH)]):
            call = caller.speak()

            async def write(call: Any = call, requests: list[bytes] = requests) -> None:
                for request in requests:
                    await call.write(request)
                async for _ in call:
                    pass

            status, details, _ = await failing(write())
            assert (status, details.partition(";")[0]) == ("INVALID_ARGUMENT", "idle: no text came for 0.1 s")
        assert heard(await caller.answers(WHOLE)) == spoken(TEXT)


async def test_a_client_who_does_not_read_is_ended_and_nothing_piles_up() -> None:
    long = asked(start={"text": "Never heard to its end, " * 800})
    options = (("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0))
    connect = lambda address: grpc.aio.insecure_channel(address, options=options)  # noqa: E731
    async with calling(max_conc=1, listener_timeout_s=0.3, connect=connect) as caller:
        call = caller.speak(x_request_id="slow-1")
        await call.write(long)
        await call.read()
        (stream,) = caller.speaker.streams
        await stream.cancelled.wait()
        entry = caller.dispatcher.request_log.get("slow-1", ANONYMOUS)
        assert (entry.reason, entry.error_code) == (FinishReason.ERROR, "listener_stalled")
        assert entry.audio_s * 48_000 < 500_000  # of 9 million bytes
        assert heard(await caller.answers(WHOLE)) == spoken(TEXT)  # on the same connection


async def test_too_many_flushes_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterance, "MAX_WAITING", 2)
    async with calling(FakeBackend(gate=asyncio.Event())) as caller:
        pieces = [asked(text="A."), asked(**FLUSH)] * 3
        status, details, _ = await failing(caller.answers(*pieces))
    assert (status, details.partition(":")[0]) == ("INVALID_ARGUMENT", "flush")


async def test_deadlines_drains_and_messages_that_do_not_come() -> None:
    async with calling(FakeBackend(gate=asyncio.Event()), request_timeout_s=0.2) as caller:
        status, details, ending = await failing(caller.speak().read())
        assert (status, ending["error-code"]) == ("DEADLINE_EXCEEDED", "deadline_exceeded")
        assert details == "request: did not come within 0.2 s; send it as soon as the call is open"
        late = caller.channel.stream_stream(SPEECH + "Speak")(timeout=0.5, metadata=(("x-request-id", "late-1"),))
        await late.write(WHOLE)
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await caller.speaker.streams[0].cancelled.wait()
        entry = caller.dispatcher.request_log.get("late-1", ANONYMOUS)
        assert (entry.reason, entry.error_code) == (FinishReason.ERROR, "deadline_exceeded")
        call = caller.speak()
        await call.write(WHOLE)
        await call.read()
        await caller.dispatcher.drain(0.0)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        status, _, ending = await failing(caller.answers(WHOLE))
        assert (status, ending["error-code"]) == ("UNAVAILABLE", "engine_stopped")


@pytest.fixture
def two_keys(tmp_path: Path) -> tuple[KeyRing, list[str]]:
    path, keys = tmp_path / "keys.toml", [new_key(), new_key()]
    for name, key in zip(("anna", "berta"), keys, strict=True):
        add_key(path, new_entry(key, name))
    return KeyRing(path), keys


async def test_keys_and_whose_voices_are_found(two_keys: tuple[KeyRing, list[str]]) -> None:
    ring, (anna, berta) = two_keys
    voice = {"name": "mine", "recording": {"content": b"RIFF", "transcript": "Well."}, "description": "me"}
    voice |= {"consent": "All.", "consent_by": "Anna"}

    async with calling(keys=ring) as caller:

        async def names(key: str) -> list[str]:
            found = await caller.ask("ListVoices", "ListVoicesResponse", b"", x_api_key=key)
            return [one.name for one in found.voices]

        for method in ("ListVoices", "AddVoice", "RemoveVoice"):
            status, _, ending = await failing(caller.ask(method, "Voice", b"", x_api_key="wrong"))
            assert (status, ending["error-code"]) == ("UNAUTHENTICATED", "unauthorized")
        assert (await failing(caller.answers(WHOLE)))[0] == "UNAUTHENTICATED"

        added = await caller.ask("AddVoice", "Voice", asked("AddVoiceRequest", **voice), x_api_key=anna)
        assert (added.name, added.kind, added.public, added.description) == ("mine", "stored", False, "me")
        assert (added.transcript, added.has_prompt, added.stands_for) == ("Well.", True, "")
        assert (added.consent, added.consent_by, added.consent_at[:2]) == ("All.", "Anna", "20")
        clipped = asked("AddVoiceRequest", **{**voice, "name": "loud", "recording": {"content": b"clipped"}})
        loud = await caller.ask("AddVoice", "Voice", clipped, x_api_key=anna)
        assert (list(added.warnings), list(loud.warnings)) == ([], ["is clipped; record it at a lower level"])
        await caller.ask("RemoveVoice", "RemoveVoiceResponse", asked("RemoveVoiceRequest", name="loud"), x_api_key=anna)
        assert (await names(anna), await names(berta)) == (["anna", "mine"], ["anna"])
        start = asked(start={"voice": "mine", "text": TEXT})
        assert heard(await caller.answers(start, authorization=f"Bearer {anna}")) == spoken(TEXT)
        assert (await failing(caller.answers(start, x_api_key=berta)))[0] == "NOT_FOUND"
        assert caller.speaker.orders[0].owner == "anna"

        again = caller.ask("AddVoice", "Voice", asked("AddVoiceRequest", **voice), x_api_key=anna)
        status, _, ending = await failing(again)
        assert (status, ending["error-code"]) == ("ALREADY_EXISTS", "voice_exists")
        replaced = asked("AddVoiceRequest", **voice, replace=True)
        await caller.ask("AddVoice", "Voice", replaced, x_api_key=anna)
        public = asked("RemoveVoiceRequest", name="anna", public=True)
        status, _, ending = await failing(caller.ask("RemoveVoice", "RemoveVoiceResponse", public, x_api_key=anna))
        assert (status, ending["error-code"]) == ("PERMISSION_DENIED", "forbidden")
        await caller.ask("RemoveVoice", "RemoveVoiceResponse", asked("RemoveVoiceRequest", name="mine"), x_api_key=anna)
        assert await names(anna) == ["anna"]


async def test_voices_that_cannot_be_kept_are_refused() -> None:
    async with calling() as caller:
        for fields, code, message in (
            ({}, "invalid_request", "name: is missing"),
            ({"name": "new"}, "invalid_audio", "reference audio: the given data is empty"),
        ):
            content = asked("AddVoiceRequest", **fields)
            status, details, ending = await failing(caller.ask("AddVoice", "Voice", content))
            assert (status, ending["error-code"]) == ("INVALID_ARGUMENT", code)
            assert details.startswith(message)
        large = asked("AddVoiceRequest", name="new", recording={"content": bytes(1_200_000)})
        assert (await failing(caller.ask("AddVoice", "Voice", large)))[0] == "RESOURCE_EXHAUSTED"
        absent = asked("RemoveVoiceRequest", name="nobody")
        assert (await failing(caller.ask("RemoveVoice", "RemoveVoiceResponse", absent)))[0] == "NOT_FOUND"


async def test_a_piece_beyond_the_rate_ends_the_call_with_what_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = tmp_path / "keys.toml", new_key()
    add_key(path, new_entry(key, "berta", characters_per_minute=60))
    async with calling(keys=KeyRing(path)) as caller:
        call = caller.answers(asked(text="a" * 60), asked(text="b" * 60), x_api_key=key)
        status, _, ending = await failing(call)
    assert (status, ending["error-code"]) == ("RESOURCE_EXHAUSTED", "overloaded")
    assert 0 < int(ending["retry-after-ms"]) <= 60_000
