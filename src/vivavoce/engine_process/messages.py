"""What a server and its engine's process send one another, and how it is framed on their socket.

Both ends are the same program on the same machine, and the socket is theirs alone: frames are pickled values, each
after its length in four bytes. The first one to the process is its `EngineProcessSettings`, all others are `Message`s.
The process leaves when the socket is closed.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any, Literal, NamedTuple

from vivavoce.server.settings import EngineSection, LoggingSection, ModelSection, VoicesSection
from vivavoce_textnorm import Lexicons

OPENING = 0
"""The number of the first answer: the model is loaded and warm (a `ModelInfo`), or cannot be loaded (an error)."""
_LENGTH = struct.Struct("!I")


class EngineProcessSettings(NamedTuple):
    """The sections of a server's settings that its engine's process needs, and the lexicons that it has read."""

    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    voices: VoicesSection = VoicesSection()
    logging: LoggingSection = LoggingSection()
    lexicons: Lexicons | None = None


class Message(NamedTuple):
    """One message; all about a request, or a question and its answer, carry one number. By kind, its value is:

    to the process: speak: a `SpeechRequest`, whose answer (None) tells that it is accepted; text: more of a text that
    arrives, None: all of it has come; heard: the segment of which the listener has taken audio; cancel: None; call: the
    name of a `ModelService` method and its arguments, answered with its result; ping: None, answered with the voice
    store's state ("ok", or what is wrong) and the streams that the engine keeps up with (`EngineLoad.capacity`) as long
    as the process gets on with texts and recordings. A process whose engine has failed ends.

    from it: answer: what was asked for, or the `VivavoceError` that it was refused with; event: the next `SpeechEvent`
    of a request; end: its `Verdict`, or the `VivavoceError` that it failed with.
    """

    number: int
    kind: Literal["speak", "text", "heard", "cancel", "call", "ping", "answer", "event", "end"]
    value: Any = None


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message; None: the other end has gone. Bytes that are not a message raise what pickle raises."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def framed(message: Message | EngineProcessSettings) -> bytes:
    """A message as it is written."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data
