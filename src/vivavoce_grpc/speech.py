"""`vivavoce.v1.Speech`: text is streamed in, audio and marks are streamed out; voices are listed and changed."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any

import grpc.aio

from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.encode import parse_format
from vivavoce.frontend.speech import FinishReason, Recording, SpeechRequest
from vivavoce.frontend.speech_backend import VoiceOptions
from vivavoce.frontend.speech_options import GUARD, SPEECH_OPTIONS
from vivavoce.frontend.voices.consent import given_consent
from vivavoce.server.rate_limiter import voice_owner
from vivavoce.server.served_models import served_model
from vivavoce.server.utterance import Reply, StreamedUtterance
from vivavoce_grpc.calls import FINISH_REASON, PROTOCOL, Call, Metadata, parsed

PACKAGE = "vivavoce.v1"
IDLE_S = 120.0
"""Seconds for which a client may send nothing while nothing is spoken."""


async def speak(call: Call) -> Metadata:
    deadline = call.port.deadline(call)
    async with call.port.speaking(call) as content:
        first = parsed(f"{PACKAGE}.SpeakRequest", content)
        start, talk = first.start, Conversation(call)
        dispatcher = call.port.dispatcher
        about = dispatcher.backend.about
        model = served_model(start.model, about, dispatcher.rules) if start.model else ""
        ask = partial(dispatcher.speak, call.principal, _request(start, call.principal.owner, model))
        utterance = StreamedUtterance(
            call.request_id,
            parse_format(start.response_format or "pcm", start.sample_rate or None),
            about.of(model).sample_rate,
            partial(ask, protocol=PROTOCOL, deadline=deadline),
            talk.send,
            grpc.aio.BaseError,
            tag=dispatcher.tag(model),
        )
        try:
            if start.text:
                utterance.end()
            await talk.receive_all(first, utterance)
            if talk.cancel is None or utterance.delivery.done():
                await utterance.delivery
        finally:
            async with talk.turn:  # never cancels a send, after which gRPC could not send the call's status
                utterance.cancel()
            await asyncio.wait({utterance.delivery})
        if talk.cancel is not None and utterance.delivery.cancelled():
            played = talk.cancel.played_ms / 1000 if talk.cancel.HasField("played_ms") else None
            await talk.send(utterance.cancelled(played))
            return ((FINISH_REASON, FinishReason.CANCELLED.value),)
        ended = utterance.verdict()
        done = {
            "finish_reason": ended.reason.value,
            "audio_seconds": ended.audio_s,
            "segments_spoken": ended.segments_spoken,
            "segments_given": ended.segments_given,
            "warnings": ended.warnings,
            "delivery": None if ended.delivery is None else asdict(ended.delivery),
        }
        await talk.send({"type": "done", **done})
    return ((FINISH_REASON, ended.reason.value),)


async def list_voices(call: Call) -> Metadata:
    await call.receive(f"{PACKAGE}.ListVoicesRequest")
    async with call.port.dispatcher.permitted(call.principal):
        found = await call.port.dispatcher.backend.voices(call.principal.owner)
    await call.send(f"{PACKAGE}.ListVoicesResponse", voices=[asdict(voice) for voice in found])
    return ()


async def add_voice(call: Call) -> Metadata:
    asked = await call.receive(f"{PACKAGE}.AddVoiceRequest")
    owner, name, sent = voice_owner(call.principal, asked.public), asked.name, asked.recording
    if not name:
        raise InvalidRequest("name: is missing; give the voice a name")
    options = VoiceOptions(
        description=asked.description,
        replace=asked.replace,
        consent=given_consent(asked.consent, asked.consent_by),
        adapter=asked.adapter,
    )
    async with call.port.dispatcher.permitted(call.principal):
        voice = await call.port.dispatcher.backend.add_voice(
            owner, name, Recording(sent.content, sent.transcript), **options
        )
    await call.send(f"{PACKAGE}.Voice", **asdict(voice))
    return ()


async def remove_voice(call: Call) -> Metadata:
    asked = await call.receive(f"{PACKAGE}.RemoveVoiceRequest")
    async with call.port.dispatcher.permitted(call.principal):
        await call.port.dispatcher.backend.remove_voice(voice_owner(call.principal, asked.public), asked.name)
    await call.send(f"{PACKAGE}.RemoveVoiceResponse")
    return ()


class Conversation:
    def __init__(self, call: Call) -> None:
        self._call = call
        self.turn = asyncio.Lock()
        """Held while a message is sent, because several tasks send."""
        self._segment = 0
        self.cancel: Any = None
        """The client's cancel message, once it has come."""
        self._clock = asyncio.get_running_loop().time
        self._last_at = self._clock()

    async def send(self, reply: Reply) -> None:
        kind, fields = reply["type"], {name: value for name, value in reply.items() if name != "type"}
        if kind == "segment":
            self._segment = fields["segment"]
        elif kind == "audio":
            fields["segment"] = self._segment
        async with self.turn:
            await self._call.send(f"{PACKAGE}.SpeakResponse", **{kind: fields})
        self._last_at = self._clock()

    async def receive_all(self, request: Any, utterance: StreamedUtterance) -> None:
        """Pass the client's messages to the utterance until the client closes its side or the utterance ends.

        request: the first message.
        """
        is_first = True
        while request is not None:
            kind = request.WhichOneof("message")
            if kind == "text":
                utterance.push(request.text)
                self._last_at = self._clock() if request.text else self._last_at
            elif kind == "flush":
                await utterance.flush()
            elif kind == "cancel":
                self.cancel = request.cancel
                return
            elif kind is None:
                raise InvalidRequest("message: is empty or unknown; send start, text, flush or cancel")
            elif not is_first:
                raise InvalidRequest("start: is not the first message; make a call for each utterance")
            request, is_first = await self._next(utterance), False
        utterance.end()

    async def _next(self, utterance: StreamedUtterance) -> Any:
        reading = asyncio.ensure_future(self._call.context.read())
        try:
            while not (reading.done() or utterance.delivery.done()):
                left_s = self._last_at + IDLE_S - self._clock()
                if left_s <= 0 and utterance.waits_for_text:
                    raise InvalidRequest(
                        f"idle: no text came for {IDLE_S:g} s; close your side when all of it has come"
                    )
                wait_s, either = left_s if left_s > 0 else IDLE_S, {reading, utterance.delivery}
                await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            content = reading.result() if reading.done() else None
            return parsed(f"{PACKAGE}.SpeakRequest", content) if isinstance(content, bytes) else None
        finally:
            reading.cancel()


def _request(start: Any, owner: str, model: str) -> SpeechRequest:
    recording = Recording(start.recording.content, start.recording.transcript)
    known = start.DESCRIPTOR.fields_by_name
    # A field that the client did not set reads as 0 or "" in proto3.
    given = {
        option.field: getattr(start, option.name) or option.default for option in SPEECH_OPTIONS if option.name in known
    }
    given[GUARD.field] = start.guard if start.HasField(GUARD.name) else GUARD.default
    return SpeechRequest(
        text=start.text or None,
        voice=recording if start.HasField("recording") else start.voice or None,
        owner=owner,
        model=model,
        sampling=SamplingParams(**{field.name: value for field, value in start.sampling.ListFields()}),
        **given,
    )
