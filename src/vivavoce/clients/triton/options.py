"""What a load on a server is made of; the standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from vivavoce.clients.triton.timeout import check_timeout
from vivavoce.clients.triton.utterance import Manner, Utterance
from vivavoce.errors import InvalidRequest

MAX_TASKS = 4096
MAX_OVERLAP_S = 1.0


class Mode(str, Enum):
    """How answers come."""

    STREAMING = "streaming"
    OFFLINE = "offline"


@dataclass(frozen=True)
class LoadOptions:
    """Who is asked for what, by how many at a time."""

    server: str
    """host:port of Triton's gRPC interface."""
    utterances: Sequence[Utterance]
    """They are asked for in their order, and again from the first on if there are more requests."""
    model: str = "cosyvoice2"
    mode: Mode = Mode.STREAMING
    manner: Manner = field(default_factory=Manner)
    num_tasks: int = 1
    """Users at a time, each of whom asks anew when the last answer is whole."""
    requests: int | None = None
    """Requests that are measured; None: each utterance once, and at least one per task."""
    warmup: int = 0
    """Requests before them, whose figures are dropped."""
    use_spk2info_cache: bool = False
    """Leave the recordings out: the server speaks in the voice that it keeps."""
    chunk_overlap_s: float = 0.0
    """What each chunk repeats of the one before it."""
    timeout_s: float = 120.0
    """For each whole answer."""
    folder: Path | None = None
    """Where the audio is kept; it is made if it does not exist."""

    def __post_init__(self) -> None:
        _within("num_tasks", self.num_tasks, 1, MAX_TASKS)
        _within("requests", self.requests if self.requests is not None else 1, 1, math.inf)
        _within("warmup", self.warmup, 0, math.inf)
        _within("chunk_overlap_duration", self.chunk_overlap_s, 0, MAX_OVERLAP_S)
        check_timeout(self.timeout_s)
        check_utterances(self.utterances)

    @property
    def total(self) -> int:
        """The number of requests that are measured."""
        return max(len(self.utterances), self.num_tasks) if self.requests is None else self.requests

    def utterance(self, place: int) -> Utterance:
        """What the request at that place (from 0) asks for, under a name that no other has."""
        found = self.utterances[place % len(self.utterances)]
        if self.total <= len(self.utterances):
            return found
        name = f"{found.name}-{place // len(self.utterances):03d}"
        return Utterance(name, found.text, found.reference, found.reference_text)


def _within(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{field}: {value} is outside of {least:g} … {most:g}; choose one inside")


def check_utterances(utterances: Sequence[Utterance]) -> None:
    """Refuse a list without utterances, and names that cannot each be a file's; `InvalidRequest`."""
    if not utterances:
        raise InvalidRequest("utterances: there are none; give at least one text")
    seen: set[str] = set()
    for utterance in utterances:
        name = utterance.name
        if not name or name in (".", "..") or any(separator in name for separator in "/\\\0"):
            raise InvalidRequest(f"name: {name!r} cannot be a file's name; leave slashes out")
        if name in seen:
            raise InvalidRequest(f"name: {name!r} is there more than once; give each utterance its own")
        seen.add(name)
