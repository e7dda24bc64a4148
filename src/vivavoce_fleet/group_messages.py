"""Messages between an engine group and its engines' processes; a voice is sent once, later only its number."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vivavoce.engine.handle import More, RequestResult
from vivavoce.engine.request import AudioChunk, Conditioning, EngineRequest


@dataclass(frozen=True)
class EngineCall:
    """Call a method with these arguments, or read a property; `EngineAnswer` brings the result."""

    number: int
    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Submit:
    number: int
    request: EngineRequest


@dataclass(frozen=True)
class SentVoice:
    """Defines a voice; later requests refer to it by its number."""

    number: int
    voice: Conditioning


@dataclass(frozen=True)
class Forget:
    """The voice with this number is not used any more."""

    number: int


@dataclass(frozen=True)
class SentText:
    number: int
    more: More


@dataclass(frozen=True)
class CancelRequest:
    number: int


@dataclass(frozen=True)
class Leave:
    """End the process."""


@dataclass(frozen=True)
class EngineAnswer:
    """The result of an `EngineCall`, a `Submit` or of loading; an exception means that it failed."""

    number: int
    value: Any


@dataclass(frozen=True)
class Made:
    number: int
    chunk: AudioChunk


@dataclass(frozen=True)
class Wanted:
    """The speech of request `number` waits for more text."""

    number: int


@dataclass(frozen=True)
class Ended:
    number: int
    result: RequestResult
    capacity: int
    """Number of streams that the engine can serve in time now."""


class VoicePickler(pickle.Pickler):
    """Pickles messages with a number for each voice, because voices are large."""

    def __init__(self, file: io.BytesIO, number_of: Callable[[Conditioning], int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number_of = number_of

    def persistent_id(self, value: Any) -> int | None:
        return self._number_of(value) if isinstance(value, Conditioning) else None


class VoiceUnpickler(pickle.Unpickler):
    def __init__(self, message: bytes, voices: Mapping[int, Conditioning]) -> None:
        super().__init__(io.BytesIO(message))
        self._voices = voices

    def persistent_load(self, number: int) -> Conditioning:
        return self._voices[number]
