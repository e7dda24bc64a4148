"""Streams of token2wav between their steps: by request id, bounded in number and bytes, dropped when nobody goes on."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

from vivavoce.doors.triton.models.flow_prompts import Prompt
from vivavoce.doors.triton.models.synthesis import Place
from vivavoce.doors.triton.models.token2wav_request import OFFSET, TOKENS, Asked
from vivavoce.errors import InvalidRequest, Overloaded


@dataclass(frozen=True)
class Bounds:
    """Of all streams: how many, and what they keep beside the flow's pages; of each: seconds without a step."""

    streams: int = 1_024
    nbytes: int = 512 << 20
    idle_s: float = 300.0


@dataclass(eq=False)
class Stream:
    """One request id's: what it began with, and how far it is.

    nbytes: what it keeps; tokens: [n] of its last step; spoken: of these, given out as audio.
    """

    id: str
    place: Place
    prompt: Prompt
    seed: int
    speed: float
    nbytes: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    spoken: int = 0
    used_at: float = 0.0

    def hop(self, asked: Asked, lookahead: int) -> int:
        """How many tokens a step turns into audio.

        lookahead: tokens at the end of a step that the flow only hears, unless it is the last.

        Raises:
            InvalidRequest: the step was made before, leaves a gap, does not repeat what the stream began with, or has
                too few tokens.
        """
        step = asked.step
        assert step is not None
        if step.offset < self.spoken:
            raise InvalidRequest(
                f"{OFFSET}: the step from {step.offset} of request id {step.id!r} was made already, its audio is given "
                f"up to token {self.spoken}; go on from there, or begin anew under another id"
            )
        if step.offset > self.spoken:
            raise InvalidRequest(
                f"{OFFSET}: {step.offset} leaves out tokens of request id {step.id!r}, whose audio is given up to "
                f"token {self.spoken}; go on from there"
            )
        self._check_same(asked)
        hop = len(asked.tokens) - step.offset - (0 if step.final else lookahead)
        if hop < 1:
            least = step.offset + 1 + (0 if step.final else lookahead)
            reason = "" if step.final else f", the last {lookahead} of which are only looked ahead at"
            raise InvalidRequest(
                f"{TOKENS}: {len(asked.tokens)} in a step from {step.offset}, which needs {least} or more{reason}; "
                "send all tokens so far"
            )
        return hop

    def _check_same(self, asked: Asked) -> None:
        if not np.array_equal(asked.tokens[: len(self.tokens)], self.tokens):
            raise InvalidRequest(
                f"{TOKENS}: do not begin with the {len(self.tokens)} of the step before; send all tokens so far"
            )
        if asked.prompt is not None and asked.prompt.key != self.prompt.key:
            raise InvalidRequest("prompt: is another voice than the stream began with; repeat it, or leave it out")
        for name, given, known in (("seed", asked.seed, self.seed), ("speed", asked.speed, self.speed)):
            if given is not None and given != known:
                raise InvalidRequest(f"{name}: {given} where the stream began with {known}; repeat it, or leave it out")


class Streams:
    """All of them.

    Args:
        close: frees a stream's places.
        clock: seconds that only grow.
    """

    def __init__(
        self, close: Callable[[Place], None], bounds: Bounds = Bounds(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._close, self._bounds, self._clock = close, bounds, clock
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        """The one that was used longest ago comes first."""
        self.nbytes = 0
        """What they keep in all."""

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, name: str) -> Stream | None:
        """The stream of a request id."""
        return self._streams.get(name)

    def check_room(self, nbytes: int) -> None:
        """Refuse one stream more that keeps so many bytes, if it is too much.

        Raises:
            Overloaded: says when the one that was used longest ago will give way at the latest.
        """
        bounds = self._bounds
        if len(self._streams) < bounds.streams and self.nbytes + nbytes <= bounds.nbytes:
            return
        oldest = next(iter(self._streams.values()), None)
        wait_s = 0.0 if oldest is None else max(0.0, oldest.used_at + bounds.idle_s - self._clock())
        raise Overloaded(
            f"token2wav: {len(self._streams)} streams keep {self.nbytes} bytes, the limits are {bounds.streams} and "
            f"{bounds.nbytes}; end some with finalize, or come again in {ceil(wait_s)} s",
            retry_after_s=wait_s,
        )

    def keep(self, stream: Stream) -> None:
        """Keep a stream until its next step; it is new, or has just made one."""
        if stream.id not in self._streams:
            self.nbytes += stream.nbytes
        stream.used_at = self._clock()
        self._streams[stream.id] = stream
        self._streams.move_to_end(stream.id)

    def drop(self, stream: Stream) -> None:
        """Free what a stream holds, whether it was kept or not."""
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            self.nbytes -= stream.nbytes
        self._close(stream.place)

    def drop_idle(self) -> None:
        """Drop those that nobody went on with for too long."""
        before = self._clock() - self._bounds.idle_s
        while (oldest := next(iter(self._streams.values()), None)) is not None and oldest.used_at < before:
            self.drop(oldest)

    def drop_all(self) -> None:
        """Drop every one."""
        for stream in list(self._streams.values()):
            self.drop(stream)

    def unknown(self, name: str, offset: int) -> InvalidRequest:
        """The error for a step beyond the first of a stream that is not here."""
        return InvalidRequest(
            f"{OFFSET}: {offset}, but request id {name!r} has no stream here: none was begun, it has ended or failed, "
            f"or was idle for {self._bounds.idle_s:g} s; begin at 0"
        )
