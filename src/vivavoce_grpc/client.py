"""A client of this server's own gRPC service; docs/grpc.md shows more.

    with SpeechClient("localhost:50000") as client:
        speech = client.speak("Hello there.", voice="calm")
        for pcm in speech:
            play(pcm, speech.started.sample_rate)

`protos/vivavoce.proto` defines the messages. This module needs grpcio and protobuf, but not torch. A refused call
raises `grpc.RpcError`: `code()` is the status, `details()` the reason, `trailing_metadata()` has the `error-code`.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import grpc

from vivavoce.loopback import is_local
from vivavoce_grpc.protos import message

PACKAGE = "vivavoce.v1"


class SpeechClient(AbstractContextManager["SpeechClient"]):
    """A connection to a server, for any number of threads. credentials: for TLS, `grpc.ssl_channel_credentials()`."""

    def __init__(
        self, address: str, *, key: str | None = None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        options = (("grpc.enable_http_proxy", 0 if is_local(address) else 1),)
        self._channel = (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
        )
        self._metadata = (("x-api-key", key),) if key else ()

    def speak(self, text: str | Iterable[str | None], *, timeout_s: float | None = None, **start: Any) -> SpokenText:
        """Ask the server to speak a text; returns at once.

        text: the whole text, or an iterable of pieces, which a thread reads. The piece None is a flush: the text so far
        is spoken without waiting for more. Halves of a surrogate pair are joined; a lone half is left out.
        start: fields of `Start`, such as voice="calm", seed=1, or recording={"content": …, "transcript": …}.
        timeout_s: limit in seconds for the whole speech.
        ValueError, TypeError: a field does not exist, or its value has another type. An error of the iterable is raised
        where the audio is read.
        """
        if isinstance(text, (bytes, bytearray)) or not isinstance(text, Iterable):
            raise TypeError(
                f"text: {text!r:.40} is of type {type(text).__name__}; give a text, or an iterable of pieces"
            )
        make = message(f"{PACKAGE}.SpeakRequest")
        whole, pieces = (text, ()) if isinstance(text, str) else ("", text)
        halves = getincrementaldecoder("utf-16-le")("ignore")

        def joined(piece: str) -> str:
            return halves.decode(piece.encode("utf-16-le", "surrogatepass"))

        first, failures = make(start={**start, "text": joined(whole)}), list[Exception]()

        def requests() -> Iterator[Any]:
            yield first
            try:
                for piece in pieces:
                    if piece is not None and not isinstance(piece, str):
                        given = f"{piece!r:.40} is of type {type(piece).__name__}"
                        raise TypeError(f"text: its piece {given}; give texts, and None for a flush")
                    yield make(flush={}) if piece is None else make(text=joined(piece))
            except Exception as error:
                failures.append(error)
                raise

        method = self._channel.stream_stream(
            f"/{PACKAGE}.Speech/Speak", make.SerializeToString, message(f"{PACKAGE}.SpeakResponse").FromString
        )
        return SpokenText(method(requests(), timeout=timeout_s, metadata=self._metadata), failures)

    def voices(self) -> list[Any]:
        """Return all voices that requests may name, as `Voice` messages."""
        return list(self._ask("ListVoices", "ListVoicesRequest", "ListVoicesResponse").voices)

    def add_voice(self, name: str, recording: bytes, transcript: str = "", **more: Any) -> Any:
        """Store the voice of a recording (an audio file's bytes); more: fields of `AddVoiceRequest`."""
        sent = {"content": recording, "transcript": transcript}
        return self._ask("AddVoice", "AddVoiceRequest", "Voice", name=name, recording=sent, **more)

    def remove_voice(self, name: str, *, public: bool = False) -> None:
        """Remove a stored voice."""
        self._ask("RemoveVoice", "RemoveVoiceRequest", "RemoveVoiceResponse", name=name, public=public)

    def close(self) -> None:
        """End the connection and all speech through it."""
        self._channel.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, request: str, answer: str, /, **fields: Any) -> Any:
        make, read = message(f"{PACKAGE}.{request}"), message(f"{PACKAGE}.{answer}").FromString
        call = self._channel.unary_unary(f"/{PACKAGE}.Speech/{method}", make.SerializeToString, read)
        return call(make(**fields), metadata=self._metadata)


class SpokenText(Iterator[bytes]):
    """One utterance: iterates over pieces of audio, which together are one file of the requested format.

    segments: characters and times of each segment whose audio is complete (`Segment`). words: with word_times=True,
    characters and times of each word so far (`Word`). done: the last message (`Done`), None until it has come.
    """

    def __init__(self, call: Any, failures: list[Exception] | None = None) -> None:
        """failures: the list to which the reader of the text adds its exception, which then ends the call."""
        self._call, self._failures = call, failures
        self._started: Any = None
        self.segments: list[Any] = []
        self.words: list[Any] = []
        self.done: Any = None

    @property
    def started(self) -> Any:
        """The request's id, sample rate and warnings (`Started`); waits until the server has accepted the request."""
        if self._started is None:
            self._started = self._receive().started
        return self._started

    def __next__(self) -> bytes:
        while True:
            answer = self._receive()
            kind = answer.WhichOneof("message")
            if kind == "audio":
                return bytes(answer.audio.audio)
            if kind == "segment_done":
                self.segments.append(answer.segment_done)
            elif kind == "words":
                self.words += answer.words.words
            elif kind == "started":
                self._started = answer.started
            elif kind == "done":
                self.done = answer.done

    def _receive(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError:
            if self._failures:
                raise self._failures[0] from None
            raise

    def cancel(self) -> None:
        """Stop the speech; audio that was not read is lost."""
        self._call.cancel()
