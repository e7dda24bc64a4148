"""How many requests are where, and whether another one may come in; shared by all threads that submit."""

from __future__ import annotations

import threading
from dataclasses import replace

from vivavoce.engine.admission import (
    AdmissionMode,
    Limits,
    Load,
    StreamShape,
    Verdict,
    admit,
    admit_offline,
    may_start,
)
from vivavoce.engine.cost_model import CostModel
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.ticket import Ticket
from vivavoce.rates import Rates

PROMPT_S, SPEECH_S, TEXT_ROWS = 5.0, 10.0, 60
"""What a stream is taken for before it has come: seconds of reference and of speech, text tokens with transcript."""
FIRST_HOP, HOP, LOOKAHEAD = 15, 50, 3
"""Speech tokens of its chunks."""


class Books:
    """Counts of accepted requests, and the decision about the next one."""

    def __init__(self, settings: EngineSettings, costs: CostModel, rates: Rates, slots: int) -> None:
        self._costs, self._slots = costs, slots
        self._limits = Limits(settings.admission, settings.max_waiting, settings.first_chunk_s, settings.headroom)
        self._shape = StreamShape(
            tokens_per_second=rates.tokens_per_second,
            frames_per_token=rates.frames_per_token,
            first_hop=FIRST_HOP + LOOKAHEAD,
            hop=HOP,
            past_frames=int((PROMPT_S + SPEECH_S / 2) * rates.frames_per_second),
            prompt_rows=TEXT_ROWS + int(PROMPT_S * rates.tokens_per_second),
            # One thread launches the work of both lanes, and on a device its time is what both are short of.
            exclusive=True,
            duration_s=SPEECH_S,
        )
        self._lock = threading.Lock()
        self._waiting: set[Ticket] = set()
        self._silent: set[Ticket] = set()
        self._sounding: set[Ticket] = set()
        self._offline: set[Ticket] = set()

    def admit(self, ticket: Ticket) -> None:
        """Count a new request in.

        Raises:
            Overloaded: it may not come in; nothing was counted.
        """
        with self._lock:
            if ticket.asked:
                self._verdict(ticket.stream.streaming).raise_if_refused()
            self._waiting.add(ticket)

    def check(self, streaming: bool) -> None:
        """Refuse a request before anything is done for it, if it would be refused now.

        Raises:
            Overloaded: as `admit`.
        """
        with self._lock:
            self._verdict(streaming).raise_if_refused()

    def may_start(self, ticket: Ticket) -> bool:
        """Whether a waiting request may begin; if so, it is counted among those that run."""
        with self._lock:
            if not ticket.stream.streaming:
                # More of it than slots would only make every plan longer.
                if self._load().offline >= self._slots:
                    return False
                self._move(ticket, self._offline)
                return True
            if ticket.asked and not may_start(self._costs, self._load(), self._shape, self._limits):
                return False
            self._move(ticket, self._silent)
            return True

    def sounds(self, ticket: Ticket) -> None:
        """A stream's listener has begun to play."""
        with self._lock:
            if ticket in self._silent:
                self._move(ticket, self._sounding)

    def ended(self, ticket: Ticket) -> None:
        """A request is over."""
        with self._lock:
            for group in self._groups:
                group.discard(ticket)

    def load(self) -> Load:
        """What there is to do now."""
        with self._lock:
            return self._load()

    @property
    def _groups(self) -> tuple[set[Ticket], ...]:
        return self._waiting, self._silent, self._sounding, self._offline

    def _move(self, ticket: Ticket, group: set[Ticket]) -> None:
        for other in self._groups:
            other.discard(ticket)
        group.add(ticket)

    def _verdict(self, streaming: bool) -> Verdict:
        load = self._load()
        if not streaming:
            return admit_offline(load, self._limits)
        if self._limits.mode is AdmissionMode.REFUSE:
            # A stream that was told it may start at once runs already, though the loop has not seen it yet.
            coming = sum(other.stream.streaming for other in self._waiting)
            streams, starting = load.streams + coming, load.starting + coming
            load = replace(load, streams=streams, starting=starting, slots_free=load.slots_free - coming)
        return admit(self._costs, load, self._shape, self._limits)

    def _load(self) -> Load:
        streams = len(self._silent) + len(self._sounding)
        return Load(
            streams=streams,
            starting=len(self._silent),
            offline=sum(ticket.unfinished for ticket in self._offline),
            waiting=len(self._waiting),
            slots_free=self._slots - streams,  # offline work gives way: it never takes the last slots
            slots_total=self._slots,
        )
