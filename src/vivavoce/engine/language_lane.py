"""The language model's work: the loop says for whom, the stage does it, ids arrive late."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from vivavoce.engine.cost_model import CostModel, Stage, Work
from vivavoce.engine.faults import Fail
from vivavoce.engine.lane import Lane
from vivavoce.engine.lm_stage import LMStage, Sampled
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.stream import Phase
from vivavoce.engine.ticket import Track
from vivavoce.errors import InvalidRequest


class LanguageLane:
    """Prefills and decode steps on a lane of their own."""

    def __init__(
        self, stage: LMStage, device: torch.device, costs: CostModel, statistics: Statistics, fail: Fail
    ) -> None:
        self._stage, self._costs, self._statistics, self._fail = stage, costs, statistics, fail
        self._lane = Lane(device, urgent=True)
        self._tracks: dict[int, Track] = {}
        """Who decodes in which slot."""

    @property
    def open(self) -> bool:
        """Another step may be launched."""
        return self._lane.open

    @property
    def busy(self) -> bool:
        """Ids, or ends of steps, are still to come."""
        # A step's end may be seen later than its ids: until then it takes a place in the lane.
        return self._stage.in_flight > 0 or self._lane.busy

    @property
    def due_at(self) -> float:
        """When the oldest launch is expected to be done, on the engine's clock; ∞: there is none."""
        return self._lane.due_at

    @property
    def steps_in_flight(self) -> int:
        """Steps whose ids are still to come."""
        return self._stage.steps_in_flight

    @property
    def slots_free(self) -> int:
        """Slots that a new sequence may take."""
        return self._stage.free_slots

    @property
    def slots_total(self) -> int:
        """All slots."""
        return self._stage.slots

    def prepare(self, slots: int | None) -> None:
        """Get ready for steps of up to so many slots; None: of all."""
        with self._lane.entered():
            self._stage.prepare(slots)

    def prefill(self, tracks: Sequence[Track]) -> None:
        """Read the tracks' rows in one forward; whoever has no slot takes one."""
        now = time.perf_counter()
        fed, queued = [], []
        for track in tracks:
            if track.slot is None:
                track.slot = self._stage.open(track.request.sampling, track.request.seed)
                self._tracks[track.slot] = track
                track.ticket.started_at = track.ticket.started_at or now
                if track.segment.place == 0 or not track.ticket.stream.streaming:
                    queued.append(now - track.ticket.stream.accepted_at)
            assert track.run is not None
            try:
                self._stage.feed(track.slot, track.run)
            except InvalidRequest as error:
                self._end_text(track, error)
                continue
            track.run, track.segment.phase, track.segment.read_at = None, Phase.DECODING, now
            fed.append(track)
        slots = [track.slot for track in fed if track.slot is not None]
        if slots:
            rows = sum(self._stage.waiting_rows(slot) for slot in slots)
            self._launch(Stage.PREFILL, Work(len(fed), rows), fed, partial(self._stage.prefill, slots), queued)
        self._count_slots()

    def decode(self, steps: int) -> bool:
        """Steps of all slots that decode; False: all ids of their runs were asked for and are on their way."""
        if not self._stage.decoding:
            return False
        tracks = [track for track in self._tracks.values() if track.segment.phase is Phase.DECODING]
        past = sum(track.segment.positions for track in tracks) + len(tracks) * (steps - 1) // 2
        launch = partial(self._stage.decode, steps)
        self._launch(Stage.DECODE, Work(len(tracks), past=past), tracks, launch, batches=steps)
        return True

    def wait(self) -> None:
        """Block until the oldest step is done."""
        if self._lane.busy:
            self._lane.settle(wait=True)
        else:  # ids of a launch that failed behind them
            self._stage.wait()

    def collect(self) -> list[Track]:
        """Give the ids that have arrived to their tracks; returns those that have more tokens, or all of them."""
        changed = []
        try:
            arrived = self._stage.collect(wait=False)
        except Exception as error:
            # The device reports late: whose step it was is not known any more.
            self._fail(list(self._tracks.values()), error)
            arrived = []
        now = time.perf_counter()
        for sampled in arrived:
            track = self._tracks.get(sampled.slot)
            if track is not None:
                try:
                    self._take(track, sampled, now)
                except Exception as error:
                    self._fail([track], error)
                changed.append(track)
        self._lane.settle()
        return changed

    def release(self, track: Track) -> None:
        """Free the track's slot at once."""
        if track.slot is not None:
            self._stage.close(track.slot)
            del self._tracks[track.slot]
            track.slot = None
            self._count_slots()

    def ask_for_text(self, track: Track) -> None:
        """Go on with a track whose text arrives, as far as its text has."""
        assert track.text is not None
        try:
            track.run = track.text.next_run()
        except InvalidRequest as error:
            self._end_text(track, error)
            return
        if track.text.done:
            self._decoded(track)
        elif track.run is None:
            track.segment.phase = Phase.STARVED
        else:
            track.segment.phase = Phase.READING if track.slot is not None else Phase.WAITING
            track.segment.prompt_rows = len(track.run.rows)

    def _count_slots(self) -> None:
        self._statistics.slots(len(self._tracks), self._stage.slots)

    def _end_text(self, track: Track, error: InvalidRequest) -> None:
        """Refuse text that is too long, after all that was made of what came before is given out."""
        track.ticket.error = error
        self._decoded(track)

    def _launch(
        self,
        stage: Stage,
        work: Work,
        tracks: Sequence[Track],
        launch: Callable[[], None],
        queued: Sequence[float] = (),
        batches: int = 1,
    ) -> None:
        """Have work done in so many equal batches, of which `work` is one."""

        def tell(seconds: float) -> None:
            share_s = seconds / len(tracks)
            for track in tracks:
                track.ticket.lm_s += share_s
            self._costs.observe(stage, work, seconds / batches)
            for _ in range(batches):
                self._statistics.batch(stage, work.rows, seconds / batches, queued)

        try:
            with self._lane.work(tell):
                launch()
        except Exception as error:
            self._fail(tracks, error)

    def _take(self, track: Track, sampled: Sampled, now: float) -> None:
        ticket, text, ids = track.ticket, track.text, sampled.ids
        if ticket.first_token_at is None:
            ticket.first_token_at = now
        if text is not None:
            ids = text.accept(ids)
        elif sampled.ended:
            ids = ids[:-1]
        track.tokens += ids
        track.segment.produced += len(ids)
        if sampled.ended:
            self._decoded(track) if text is None else self.ask_for_text(track)

    def _decoded(self, track: Track) -> None:
        track.segment.phase = Phase.DECODED
        self.release(track)
