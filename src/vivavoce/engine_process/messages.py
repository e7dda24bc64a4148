"""The messages between a server and its engine's process, and their framing on the socket.

Both ends are the same program on the same machine, and only they use the socket: a frame is a pickled value after its
length in four bytes. The first one to the process is its `EngineProcessSettings`, and the first one from it `Opening`.
The process ends when the socket is closed. All messages about one request or question carry the same number.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from vivavoce.errors import VivavoceError
from vivavoce.frontend.speech import SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.server.settings import EngineSection, LoggingSection, ModelSection, VoicesSection
from vivavoce_textnorm.lexicon import Lexicons

_LENGTH = struct.Struct("!I")


class EngineProcessSettings(NamedTuple):
    """The sections of a server's settings that its engine's process needs, and the lexicons, which the server reads."""

    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    voices: VoicesSection = VoicesSection()
    logging: LoggingSection = LoggingSection()
    lexicons: Lexicons | None = None


@dataclass(frozen=True)
class Speak:
    """To the process: a request. `Answer` tells whether it is accepted."""

    number: int
    request: SpeechRequest


@dataclass(frozen=True)
class Text:
    """To the process: more of a streamed text; None: its end."""

    number: int
    text: str | None


@dataclass(frozen=True)
class Heard:
    """To the process: the listener has taken audio of this segment."""

    number: int
    segment: int


@dataclass(frozen=True)
class Cancel:
    """To the process: end a request or question."""

    number: int


@dataclass(frozen=True)
class Call:
    """To the process: call a method of `ModelService`."""

    number: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Ping:
    """To the process: a health check, answered with a `Pulse` while texts and recordings make progress.

    A process whose engine has failed ends instead.
    """

    number: int


class Pulse(NamedTuple):
    """voice_store: "ok", or the problem; capacity: streams that the engine keeps up with, see `EngineLoad`."""

    voice_store: str
    capacity: int


@dataclass(frozen=True)
class Opening:
    """From the process: the model is loaded and warm, or cannot be loaded."""

    outcome: ModelInfo | VivavoceError


@dataclass(frozen=True)
class Answer:
    """From the process: the result for `Speak` (None: accepted), `Call` or `Ping`, or the error that refuses it."""

    number: int
    value: Any = None


@dataclass(frozen=True)
class Event:
    """From the process: the next event of a request."""

    number: int
    event: SpeechEvent


@dataclass(frozen=True)
class End:
    """From the process: a request has ended or failed."""

    number: int
    outcome: Verdict | VivavoceError


Question = Speak | Call | Ping
ToProcess = Question | Text | Heard | Cancel
FromProcess = Opening | Answer | Event | End


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message; None: the other end has closed. Bytes that are not a message raise what pickle raises."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def framed(message: ToProcess | FromProcess | EngineProcessSettings) -> bytes:
    """The bytes of a message on the socket."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data
