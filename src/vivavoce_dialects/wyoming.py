"""The Wyoming protocol of Home Assistant, on a port of its own.

An event is a line of JSON, then its data as JSON, then its payload. The protocol has neither keys nor TLS: all clients
of the port are one caller, anonymous or with the key that the settings name. The package `wyoming` is not used: its
reader has no limits for the length of data and payload.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any

from vivavoce.errors import InvalidRequest, InvalidText, StageFailed, VivavoceError
from vivavoce.frontend.audio.encode import AudioFormat, OutputFormat
from vivavoce.frontend.speech import SpeechRequest
from vivavoce.logs import note_principal, request_scope
from vivavoce.server.dispatcher import RequestDispatcher, sent_within
from vivavoce.server.keys import KeyRing
from vivavoce.server.setting_kinds import is_loopback
from vivavoce.server.settings import ServerSection
from vivavoce.server.utterance import Reply, StreamedUtterance
from vivavoce.version import __version__
from vivavoce_textnorm import MAX_TEXT_CHARS

PROTOCOL = "wyoming"
LINE_BYTES, DATA_BYTES = 65_536, 262_144
"""Maximum bytes of an event's line or payload, and of its data: enough for a text of 20,000 characters."""
TEXT_PAUSE_S = 120.0
"""Longest wait for the next piece of a text, in seconds."""
PATIENCE_S = 1.0
"""Seconds without a message after which a client's connection may be closed in favour of another client."""
CLOSING_S = 2.0
"""Seconds that a client gets to read the last data when its connection is closed."""
SEND_BYTES = 8 * 1024
"""Unsent bytes above which a sender waits: 170 ms of audio."""
SERVICE = "_wyoming._tcp.local."

log = logging.getLogger(__name__)


@asynccontextmanager
async def serving_wyoming(
    dispatcher: RequestDispatcher, keys: KeyRing, settings: ServerSection, listening: socket.socket
) -> AsyncIterator[int]:
    """Serve a listening socket in the running event loop until the block ends; yield the port."""
    connections: dict[_Connection, asyncio.Task[None] | None] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(dispatcher, keys, settings, reader, writer)
        if len(connections) >= settings.max_connections:
            oldest = min(connections, key=lambda one: one.waits_since)
            if asyncio.get_running_loop().time() - oldest.waits_since < PATIENCE_S:
                writer.transport.abort()
                return
            oldest.writer.transport.abort()
            connections.pop(oldest, None)
        connections[connection] = asyncio.current_task()
        try:
            await connection.serve()
        finally:
            connections.pop(connection, None)

    server, port = await asyncio.start_server(connected, sock=listening, limit=LINE_BYTES), listening.getsockname()[1]
    try:
        async with nullcontext() if is_loopback(settings.host) else _announced(settings.host, port):
            yield port
    finally:
        server.close()
        for connection in connections:
            connection.writer.transport.abort()
        await asyncio.gather(*(task for task in connections.values() if task is not None), return_exceptions=True)


class _Connection:
    """A client's connection. waits_since: loop time at which it became idle; inf while a text is spoken."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        keys: KeyRing,
        settings: ServerSection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._dispatcher, self._keys, self._settings = dispatcher, keys, settings
        self._reader, self.writer = reader, writer
        self.waits_since = asyncio.get_running_loop().time()
        self._utterance: StreamedUtterance | None = None
        self._is_streamed = False
        self._whole: dict[str, Any] | None = None
        """The data of a `synthesize` that came within a stream."""
        self._characters = self._samples = 0
        """Number of received characters of the utterance, and number of sent samples of its audio."""
        writer.transport.set_write_buffer_limits(high=SEND_BYTES)

    async def serve(self) -> None:
        reading = asyncio.ensure_future(self._read())
        try:
            while True:
                speaking = None if self._utterance is None else self._utterance.delivery
                waited = {reading} if speaking is None else {reading, speaking}
                idle_s = None if speaking is not None else self._settings.keep_alive_s
                pause_s = TEXT_PAUSE_S if self._takes_text else idle_s
                done, _ = await asyncio.wait(waited, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if speaking in done:
                    await self._finish()
                if reading in done:
                    if (event := reading.result()) is None:
                        return
                    await self._handle(*event)
                    reading = asyncio.ensure_future(self._read())
                if not done:
                    if not self._takes_text:
                        return
                    raise InvalidRequest(f"text: no piece came for {TEXT_PAUSE_S:g} s; send synthesize-stop at its end")
        except VivavoceError as error:
            # The dispatcher counts errors of an utterance itself.
            if self._utterance is None or not self._utterance.delivery.done():
                self._dispatcher.metrics.refuse(PROTOCOL, error.code)
            await self._end_with(error)
        except OSError:
            pass  # the client has disconnected
        except Exception:
            log.exception("wyoming failed")
            await self._end_with(StageFailed("server: an internal error, which was logged; tell its operator"))
        finally:
            reading.cancel()
            await asyncio.gather(reading, self._stop(), return_exceptions=True)
            self.writer.close()
            asyncio.get_running_loop().call_later(CLOSING_S, self.writer.transport.abort)

    async def _read(self) -> tuple[str, dict[str, Any]] | None:
        """Read an event; return its type and data, or None if the client has disconnected."""
        try:
            if not (line := await self._reader.readline()):
                return None
            head = _object(json.loads(line), "event")
            if not isinstance(kind := head.get("type"), str):
                given = f"{kind!r:.40} is not a text" if "type" in head else "is missing"
                raise InvalidRequest(f"type: {given}; each event needs one, such as synthesize")
            sizes = [head.get(name) or 0 for name in ("data_length", "payload_length")]
            for size, limit in zip(sizes, (DATA_BYTES, LINE_BYTES), strict=True):
                if not isinstance(size, int) or not 0 <= size <= limit:
                    raise InvalidRequest(f"event: its data or payload has {size!r:.20} bytes; send 0 … {limit}")
            data = {} if head.get("data") is None else _object(head["data"], "data")
            if sizes[0]:
                data |= _object(json.loads(await self._reader.readexactly(sizes[0])), "data")
            await self._reader.readexactly(sizes[1])
        except asyncio.IncompleteReadError:
            return None
        except (ValueError, TypeError, RecursionError):
            raise InvalidRequest(f"event: is not JSON of up to {LINE_BYTES} bytes; send Wyoming's events") from None
        return kind, data

    async def _handle(self, kind: str, data: dict[str, Any]) -> None:
        """Act on an event. Events of unknown types are ignored, as the protocol requires."""
        if kind == "describe":
            await self._send("info", await self._info())
        elif kind == "ping":
            await self._send("pong", {"text": data.get("text")})
        elif kind == "synthesize-start":
            await self._begin(data, None)
        elif kind == "synthesize" and self._takes_text:
            self._whole = data
        elif kind == "synthesize":
            await self._begin(data, _text_of(data))
        elif kind == "synthesize-chunk":
            text = _text_of(data)
            if self._utterance is None or not self._takes_text:
                raise InvalidRequest("synthesize-chunk: no text was begun; send synthesize-start first")
            self._characters += len(text)
            if self._characters > MAX_TEXT_CHARS:
                raise InvalidText(
                    f"text: {self._characters} characters are more than the limit of {MAX_TEXT_CHARS}; "
                    "send synthesize-stop, and the rest in a stream of its own"
                )
            self._utterance.push(text)
        elif kind == "synthesize-stop":
            if self._utterance is None:
                raise InvalidRequest("synthesize-stop: no text was begun; send synthesize-start first")
            self._end_text(self._utterance)

    def _end_text(self, utterance: StreamedUtterance) -> None:
        """End a text. The `synthesize` of a stream repeats all chunks for older servers; it counts if no chunk came."""
        if self._takes_text and self._whole is not None and not self._characters:
            utterance.push(_text_of(self._whole))
        utterance.end()

    @property
    def _takes_text(self) -> bool:
        return self._utterance is not None and not self._utterance.has_ended

    async def _begin(self, data: dict[str, Any], text: str | None) -> None:
        if self._utterance is not None:
            self._end_text(self._utterance)  # a start in the middle of a text ends that text
            await asyncio.wait({self._utterance.delivery})
            await self._finish()
        name = _voice_of(data)
        self._is_streamed, self._characters, self._samples, self.waits_since = text is None, 0, 0, math.inf
        self._whole = None
        principal = self._keys.named(self._settings.wyoming_key or "")
        request_id = self._dispatcher.request_log.accept_request_id(None, principal)
        wanted = SpeechRequest(text, name, principal.owner, word_times=_word_times_of(data))
        ask = partial(self._dispatcher.speak, principal, wanted, protocol=PROTOCOL)
        output, rate = OutputFormat(AudioFormat.PCM), self._dispatcher.backend.about.sample_rate
        with request_scope(request_id):
            note_principal(principal.name)
            self._utterance = StreamedUtterance(request_id, output, rate, ask, self._reply, OSError)
        if text is not None:
            self._utterance.end()

    async def _finish(self) -> None:
        assert self._utterance is not None
        self._utterance.delivery.result()
        await self._send_timed("audio-stop", {})
        if self._is_streamed:
            await self._send("synthesize-stopped", {})
        self._utterance = None
        self.waits_since = asyncio.get_running_loop().time()

    async def _reply(self, reply: Reply) -> None:
        form = {"rate": self._dispatcher.backend.about.sample_rate, "width": 2, "channels": 1}
        if reply["type"] == "started":
            await self._send_timed("audio-start", form)
        elif reply["type"] == "audio":
            await self._send_timed("audio-chunk", form, reply["audio"])
            self._samples += len(reply["audio"]) // 2
        elif reply["type"] == "words":
            await self._send_timed("synthesize-words", {name: reply[name] for name in reply if name != "type"})

    async def _send_timed(self, kind: str, data: dict[str, Any], payload: bytes = b"") -> None:
        timestamp = self._samples * 1000 // self._dispatcher.backend.about.sample_rate
        sending = self._send(kind, {**data, "timestamp": timestamp}, payload)
        await sent_within(self._settings.listener_timeout_s, sending)

    async def _info(self) -> dict[str, Any]:
        about, principal = self._dispatcher.backend.about, self._keys.named(self._settings.wyoming_key or "")
        async with self._dispatcher.permitted(principal):
            voices = await self._dispatcher.backend.voices(principal.owner)
        common = {"attribution": {"name": "vivavoce", "url": ""}, "installed": True, "version": __version__}
        described = [
            {**common, "name": one.name, "description": one.description or one.name, "languages": about.languages}
            for one in voices
        ]
        program = {**common, "name": "vivavoce", "description": about.name, "voices": described}
        return {"tts": [{**program, "supports_synthesize_streaming": True}]}

    async def _send(self, kind: str, data: dict[str, Any], payload: bytes = b"") -> None:
        """Send an event; returns when the transport has accepted it. OSError: the client has disconnected."""
        content = json.dumps(data, ensure_ascii=False).encode()
        head = {"type": kind, "data_length": len(content), "payload_length": len(payload)}
        self.writer.write(json.dumps(head).encode() + b"\n" + content + payload)
        await self.writer.drain()

    async def _stop(self) -> None:
        if self._utterance is not None:
            self._utterance.cancel()
            await asyncio.wait({self._utterance.delivery})

    async def _end_with(self, error: VivavoceError) -> None:
        await self._stop()
        with suppress(OSError, TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._send("error", {"text": str(error), "code": error.code}), CLOSING_S)


def _object(found: Any, field: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InvalidRequest(f"{field}: {found!r:.40} is not a JSON object; send Wyoming's events")
    return found


def _text_of(data: dict[str, Any]) -> str:
    if not isinstance(text := data.get("text"), str):
        given = f"{text!r:.40} is not a text" if "text" in data else "is missing"
        raise InvalidRequest(f"text: {given}; a synthesize event needs one")
    return text


def _word_times_of(data: dict[str, Any]) -> bool:
    if not isinstance(wanted := data.get("word_times", False), bool):
        raise InvalidRequest(f"word_times: {wanted!r:.40} is neither true nor false; send one of them, or leave it out")
    return wanted


def _voice_of(data: dict[str, Any]) -> str | None:
    """Return the name of the voice or of its speaker; None if neither is given."""
    voice = data.get("voice")
    names = [voice.get("name"), voice.get("speaker")] if isinstance(voice, dict) else [voice]
    name = next((one for one in names if one not in (None, "")), None)
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"voice: {name!r:.40} is not a name; send one of those in info")
    if name is None and isinstance(voice, dict) and (unknown := voice.keys() - {"name", "language", "speaker"}):
        raise InvalidRequest(f"voice: {min(unknown)!r:.40} names no voice; send name, or speaker")
    return name


@asynccontextmanager
async def _announced(host: str, port: int) -> AsyncIterator[None]:
    """Announce the server in the local network for Home Assistant, if zeroconf is installed."""
    try:
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf
    except ImportError:
        yield
        return
    addresses = [host] if host not in ("0.0.0.0", "::") else socket.gethostbyname_ex(socket.gethostname())[2]
    name = f"vivavoce-{socket.gethostname().partition('.')[0]}-{port}"
    info = AsyncServiceInfo(SERVICE, f"{name}.{SERVICE}", port=port, parsed_addresses=addresses)
    zeroconf = AsyncZeroconf(interfaces=addresses)
    try:
        await zeroconf.async_register_service(info)
        yield
    finally:
        await zeroconf.async_close()
