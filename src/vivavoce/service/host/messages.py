"""What a server and its engine's process say to one another, and how it is framed on their socket.

Both ends are the same program on the same machine, and the socket is theirs alone: frames are pickled values, each
after its length in four bytes.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from typing import Any

from vivavoce.errors import VivavoceError
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.speaker import ModelAbout, SpeechEvent
from vivavoce.service.host.verdict import Verdict

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Speak:
    """A request; what is said of it carries its number."""

    number: int
    order: SpeechOrder


@dataclass(frozen=True)
class MoreText:
    """More of a text that arrives piece by piece; None: all of it has come."""

    number: int
    text: str | None


@dataclass(frozen=True)
class Heard:
    """The listener has taken audio of this segment."""

    number: int
    segment: int


@dataclass(frozen=True)
class Cancel:
    """Nobody wants the request any more."""

    number: int


@dataclass(frozen=True)
class ListVoices:
    """Asks for the voices that an owner sees."""

    number: int
    owner: str


@dataclass(frozen=True)
class AddVoice:
    """Asks for a voice to be extracted and kept."""

    number: int
    owner: str
    name: str
    recording: Recording
    description: str
    replace: bool


@dataclass(frozen=True)
class RemoveVoice:
    """Asks for a stored voice to be forgotten."""

    number: int
    owner: str
    name: str


@dataclass(frozen=True)
class AskFigures:
    """Asks for statistics."""

    number: int


@dataclass(frozen=True)
class Ping:
    """Asks whether the process still takes messages; the answer is None. One whose engine has failed ends then."""

    number: int


@dataclass(frozen=True)
class Stop:
    """Nothing more will be asked: leave."""


Question = ListVoices | AddVoice | RemoveVoice | AskFigures | Ping
ToEngine = Speak | MoreText | Heard | Cancel | Question | Stop


@dataclass(frozen=True)
class Ready:
    """The model is loaded and warm."""

    about: ModelAbout


@dataclass(frozen=True, eq=False)
class Broken:
    """The model cannot be loaded; the process leaves."""

    error: VivavoceError


@dataclass(frozen=True, eq=False)
class Answer:
    """The value that was asked for, or, for a request for speech, that it was accepted (None)."""

    number: int
    value: Any


@dataclass(frozen=True, eq=False)
class Refused:
    """Why there is no answer."""

    number: int
    error: VivavoceError


@dataclass(frozen=True, eq=False)
class Said:
    """What comes next of a request."""

    number: int
    event: SpeechEvent


@dataclass(frozen=True, eq=False)
class Ended:
    """A request is over; error: what it failed with."""

    number: int
    verdict: Verdict
    error: VivavoceError | None


FromEngine = Ready | Broken | Answer | Refused | Said | Ended


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message; None: the other end has gone. What is no message raises whatever pickle makes of it."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def framed(message: ToEngine | FromEngine | Any) -> bytes:
    """A message as it is written."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data
