"""The messages between a server and its engine's process, and their framing on the socket.

A frame is the length of a pickled value, in four bytes, followed by this value. Pickle is safe here: both ends are the
same program on the same machine, and only they use the socket. First the server sends `EngineProcessSettings`, and the
process sends `Opening`. The process ends when the socket is closed. All messages about one request have its number.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import pickle
import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from vivavoce.errors import VivavoceError
from vivavoce.frontend.speech import SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.settings import EngineSection, LoggingSection, ModelSection, ProvenanceSection, VoicesSection
from vivavoce_textnorm import Lexicons, NormalizedText

_LENGTH = struct.Struct("!I")


class EngineProcessSettings(NamedTuple):
    """The sections of a server's settings that its engine's process needs, and the lexicons, which the server reads.

    shared: whether the engine of another model uses the same GPU; adapters: names and folders of adapters that were
    loaded while the server ran, for a process that is started again.
    """

    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    voices: VoicesSection = VoicesSection()
    logging: LoggingSection = LoggingSection()
    provenance: ProvenanceSection = ProvenanceSection()
    lexicons: Lexicons | None = None
    shared: bool = False
    adapters: tuple[tuple[str, str], ...] = ()


# Messages to the engine's process.


@dataclass(frozen=True)
class Speak:
    number: int
    request: SpeechRequest


@dataclass(frozen=True)
class MoreText:
    number: int
    text: str | None
    """The next piece of a streamed text; None marks the end of the text."""


@dataclass(frozen=True)
class Heard:
    number: int
    segment: int
    """The listener has taken audio of this segment."""


@dataclass(frozen=True)
class Cancel:
    number: int


@dataclass(frozen=True)
class MethodCall:
    number: int
    method: str
    """The name of the method in `ModelService`."""
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Ping:
    """A health check, answered once texts and recordings make progress. If the engine has failed, the process ends."""

    number: int


# Messages from the engine's process.


@dataclass(frozen=True)
class Opening:
    """The process's first message; outcome: the loaded model, or the error of its loading; protocol: its `PROTOCOL`."""

    outcome: ModelInfo | VivavoceError
    protocol: str = field(default_factory=lambda: PROTOCOL)


@dataclass(frozen=True)
class Answer:
    number: int
    value: Any = None
    """The result of a `MethodCall`, the `Pulse` for a `Ping`, None for an accepted `Speak`, or an error."""


class Pulse(NamedTuple):
    voice_store: str
    capacity: int


@dataclass(frozen=True)
class Event:
    number: int
    event: SpeechEvent


@dataclass(frozen=True)
class End:
    number: int
    outcome: Verdict | VivavoceError


Question = Speak | MethodCall | Ping
ToProcess = Question | MoreText | Heard | Cancel
FromProcess = Opening | Answer | Event | End


def _protocol() -> str:
    """Return a hash of the fields of all messages and of the types of their values.

    An engine's process may be started after the program's files were replaced. The server can use the process only if
    each can read the other's pickles, and so only if both have the same hash.
    """
    waiting: list[Any] = [EngineProcessSettings, *get_args(ToProcess), *get_args(FromProcess)]
    waiting += [Pulse, BackendStatistics, VoiceSummary, Consent, NormalizedText]  # types in calls and their answers
    fields: dict[str, str] = {}
    while waiting:
        kind = waiting.pop()
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in fields or not kind.__module__.startswith("vivavoce"):
            continue
        fields[name] = "; ".join(f"{field}: {what}" for field, what in inspect.get_annotations(kind).items())
        meant = [vars(sys.modules[kind.__module__]).get(word) for word in re.findall(r"\w+", fields[name])]
        used = [*kind.__bases__, *meant, *(part for one in meant for part in get_args(one))]
        waiting += [one for one in used if isinstance(one, type)]
    return hashlib.sha256("\n".join(map(" ".join, sorted(fields.items()))).encode()).hexdigest()


PROTOCOL: str = _protocol()


async def read_message(reader: asyncio.StreamReader) -> Any:
    """Return the next message; None if the other end has closed the socket. Malformed bytes raise pickle's errors."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def framed(message: ToProcess | FromProcess | EngineProcessSettings) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data
