"""Runs the language model: launches prefills and decode steps for sequences that the loop passes, and collects ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from vivavoce.checkpoint.config import SilentTokens
from vivavoce.engine.cost_model import BatchSize, CostModel, Stage
from vivavoce.engine.device import DeviceQueue
from vivavoce.engine.guard import (
    LOOK_EVERY,
    MOST_TRIES,
    GuardedText,
    another_seed,
    cut_for,
    end_for,
    find_fault,
    run_again,
)
from vivavoce.engine.lm_stage import DecodeRun, Sampled
from vivavoce.engine.request_state import Phase, SequenceState
from vivavoce.engine.stages import Fail, LMInterface
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.text_cursor import TextCursor
from vivavoce.errors import EngineStopped, InvalidRequest
from vivavoce.models.lm.text_attention import TextHeads


class LMRunner:
    """Runs prefills and decode steps on a queue of their own; `fail` is `Loop.fail`.

    silent: the silent speech tokens. If the model samples too many of them in a row, the surplus is left out.
    """

    fail: Fail

    def __init__(
        self,
        stage: LMInterface,
        queue: DeviceQueue,
        costs: CostModel,
        statistics: Statistics,
        silent: SilentTokens = SilentTokens(),
    ) -> None:
        self.stage, self._costs, self._statistics, self._silent = stage, costs, statistics, silent
        self.queue = queue
        self.heads: TextHeads | None = None
        """The attention heads that are used to follow watched segments."""
        self._sequences: dict[int, SequenceState] = {}
        """Sequences by the slot that they hold."""

    @property
    def busy(self) -> bool:
        # The end of a step may be noticed later than its ids; until then the step still counts as queued.
        return self.stage.in_flight > 0 or self.queue.busy

    def prepare(self, slots: int | None) -> None:
        with self.queue.entered():
            self.stage.prepare(slots)

    def prefill(self, sequences: Sequence[SequenceState]) -> None:
        now = self.queue.clock()
        begun: list[SequenceState] = []
        queued: list[float] = []
        for sequence in sequences:
            request = sequence.request
            if sequence.slot is None:
                segment = sequence.segment
                seed = another_seed(segment.seed, sequence.tries) if sequence.tries else segment.seed
                sequence.slot = self.stage.open(segment.sampling, seed)
                self._sequences[sequence.slot] = sequence
                if sequence.place == 0 and not sequence.sampled:
                    sequence.silence = self._silent.run_at_start
                if request.timings.started_s is None:
                    request.timings.started_s = now - request.accepted_at
                if not sequence.tries and (sequence.place == 0 or request.policy is None):
                    queued.append(now - request.accepted_at)
            assert sequence.run is not None
            try:
                self.stage.check(sequence.run, sequence.slot)
            except InvalidRequest as error:  # the audio of the earlier text is still handed out
                request.error = error
                self._decoded(sequence)
                continue
            sequence.phase, sequence.read_at = Phase.DECODING, now
            begun.append(sequence)
        # If a batch fails, each sequence is tried alone, because one sequence or the batch's memory may be the cause.
        batches = [begun] if begun else []
        while batches:
            batch, decoding = batches.pop(0), self.stage.decoding
            runs = {one.slot: one.run for one in batch if one.slot is not None and one.run is not None}
            size = BatchSize(len(batch), sum(len(run.rows) for run in runs.values()))
            try:
                self._launch(Stage.PREFILL, size, batch, partial(self.stage.prefill, runs), queued)
            except Exception as error:
                if len(batch) == 1 or decoding != self.stage.decoding:
                    self.fail(batch, error)
                else:
                    batches, queued = [[one] for one in batch], []
        for sequence in begun:
            sequence.run = None
        self._count_slots()

    def decode(self, steps: int) -> bool:
        """Launch decode steps for all slots that decode; return False if no slot needs a step."""
        if not self.stage.decoding:
            return False
        decoding = [one for one in self._sequences.values() if one.phase is Phase.DECODING]
        past = sum(one.prompt_rows + one.produced for one in decoding) + len(decoding) * (steps - 1) // 2
        size = BatchSize(len(decoding), 0, past)
        try:
            self._launch(Stage.DECODE, size, decoding, partial(self.stage.decode, steps), (), steps)
        except Exception as error:
            # All sequences share the step, so it is unknown which of them have their ids.
            self.fail(decoding, error)
        return True

    def wait(self) -> None:
        if self.queue.busy:
            self.queue.settle(wait=True)
        else:  # a launch failed, and earlier ids are still on their way
            self.stage.wait()

    def collect(self) -> list[SequenceState]:
        """Add arrived ids to their sequences; return the sequences that have new tokens or have ended."""
        changed = []
        try:
            arrived = self.stage.collect(wait=False)
        except Exception as error:
            # The device reports errors late, so it is unknown which sequences are affected.
            self.fail(list(self._sequences.values()), error)
            if isinstance(error, EngineStopped):
                raise
            arrived = []
        now = self.queue.clock()
        if self.stage.self_paced:
            self._learn(arrived)
        for one in arrived:
            sequence, ids, ended, failure = self._sequences.get(one.slot), one.ids, one.ended, one.error
            if sequence is None:
                continue
            if failure is not None:
                self.fail([sequence], failure)
                continue
            changed.append(sequence)
            request, text = sequence.request, sequence.text
            if request.timings.first_token_s is None:
                request.timings.first_token_s = now - request.accepted_at
            try:
                if text is not None:
                    ids = text.accept(ids)
                elif ended:
                    ids = ids[:-1]
                sequence.sampled += len(ids)
                places: Sequence[int] = range(len(ids))
                if self._silent.ids:
                    places, sequence.silence = self._silent.spoken(ids, sequence.silence)
                if one.attention is not None or sequence.cursor is not None:
                    self._follow(sequence, one, places)
                sequence.tokens.extend(ids[place] for place in places)
                sequence.produced += len(places)
                if sequence.first_run is not None and self._drawn_again(sequence, sequence.first_run, ended):
                    continue
                if text is not None and ended:
                    self.ask_for_text(sequence)
                elif ended or (text is None and sequence.sampled >= sequence.most_tokens):
                    # The runner need not wait for the control id that is forced at the limit.
                    self._decoded(sequence)
            except Exception as error:
                self.fail([sequence], error)
        self.queue.settle()
        return changed

    def _drawn_again(self, sequence: SequenceState, run: DecodeRun, ended: bool) -> bool:
        """Check a guarded sequence; if its speech has left the text, drop wrong tokens, sample again, and return True.

        After the last try, end speech that does not return to its text. run: the run of the whole text.
        """
        cursor, tokens = sequence.cursor, sequence.tokens
        if cursor is None or self.heads is None:
            return False
        if not ended and len(tokens) < sequence.looked + LOOK_EVERY:
            return False
        segment = sequence.segment
        sequence.looked = len(tokens)
        words = getattr(segment, "guarded", None) or (0,)
        text = GuardedText(len(run.watched) - run.unspoken, words, self.heads.pace)
        least = 0 if sequence.request.policy is None else sequence.seen
        if sequence.tries > MOST_TRIES:
            end = None if ended else end_for(cursor, text)
            if end is not None:
                self._keep(sequence, max(least, end))
                self._decoded(sequence)
            return end is not None
        finding = find_fault(cursor, tokens, text, ended, self._silent.ids)
        if finding is None:
            return False
        kept = cut_for(finding, cursor, self.heads.lag, least)
        again = sequence.tries < MOST_TRIES and kept <= len(tokens)
        unheard = sequence.faults.get(finding.fault.value, True) and kept <= finding.at
        sequence.faults[finding.fault.value] = again and unheard
        if not again:
            sequence.tries = MOST_TRIES + 1  # the rest is spoken as it is, and `faults` reports the fault
            return False
        self.release(sequence)
        self._keep(sequence, kept)
        sequence.silence, sequence.tries = 0, sequence.tries + 1
        sequence.run = run_again(run, tokens, text.ids, finding.fault)
        sequence.phase, sequence.prompt_rows = Phase.WAITING, len(sequence.run.rows)
        return True

    @staticmethod
    def _keep(sequence: SequenceState, count: int) -> None:
        """Drop all but the first `count` speech tokens."""
        assert sequence.cursor is not None
        del sequence.tokens[count:]
        sequence.cursor = sequence.cursor.kept(count)
        sequence.produced = sequence.sampled = sequence.looked = count

    @staticmethod
    def _follow(sequence: SequenceState, sampled: Sampled, places: Sequence[int]) -> None:
        """Add the attention of the ids at `places`, which are the spoken ids, to the sequence's cursor."""
        attention = sampled.attention
        if sequence.cursor is None:
            sequence.cursor = TextCursor()
            sequence.cursor.add(sequence.produced)
        sequence.cursor.add(len(places), None if attention is None else attention[places], sampled.text_start)

    def release(self, sequence: SequenceState) -> None:
        if sequence.slot is not None:
            self.stage.close(sequence.slot)
            del self._sequences[sequence.slot]
            sequence.slot = None
            self._count_slots()

    def ask_for_text(self, sequence: SequenceState) -> None:
        assert sequence.text is not None
        try:
            sequence.run = sequence.text.next_run()
        except InvalidRequest as error:  # the text is too long; the audio of the earlier text is still handed out
            sequence.request.error = error
            self._decoded(sequence)
            return
        if sequence.text.done:
            self._decoded(sequence)
        elif sequence.run is None:
            sequence.phase = Phase.STARVED
        else:
            sequence.phase = Phase.READING if sequence.slot is not None else Phase.WAITING
            sequence.prompt_rows = len(sequence.run.rows)

    def _learn(self, arrived: Sequence[Sampled]) -> None:
        """Learn the mean seconds of first ids and of later ids from a stage that decodes at its own pace."""
        decoding = [one for one in self._sequences.values() if one.phase is Phase.DECODING]
        first: list[tuple[float, int]] = []
        later: list[tuple[float, int]] = []
        for one in arrived:
            sequence = self._sequences.get(one.slot)
            if one.seconds is None or sequence is None:
                continue
            sequence.request.timings.lm_s += one.seconds * len(one.ids) / max(1, len(decoding))
            (later if sequence.produced else first).append((one.seconds, sequence.prompt_rows))
        past = sum(one.prompt_rows + one.produced for one in decoding)
        sizes = BatchSize(1, max((rows for _, rows in first), default=0)), BatchSize(max(1, len(decoding)), 0, past)
        for stage, size, taken in zip((Stage.PREFILL, Stage.DECODE), sizes, (first, later), strict=True):
            if taken:
                seconds = sum(spent for spent, _ in taken) / len(taken)
                self._costs.observe(stage, size, seconds)
                self._statistics.batch(stage, size.rows, seconds, ())

    def _launch(
        self,
        stage: Stage,
        size: BatchSize,
        sequences: Sequence[SequenceState],
        work: Callable[[], None],
        queued: Sequence[float],
        batches: int = 1,
    ) -> None:
        """Launch work that consists of `batches` equal batches, each of this size."""

        def on_done(seconds: float) -> None:
            if self.stage.self_paced:  # the work was only requested, it has not begun
                self._statistics.batch(stage, size.rows, 0.0, queued, 0)
                return
            share_s = seconds / len(sequences)
            for sequence in sequences:
                sequence.request.timings.lm_s += share_s
            self._costs.observe(stage, size, seconds / batches)
            self._statistics.batch(stage, size.rows, seconds / batches, queued, batches)

        self.queue.launch(work, on_done)

    def _count_slots(self) -> None:
        used = len(self._sequences)
        with self._statistics.lock:
            slots = self._statistics.now.slots
            slots.used, slots.peak, slots.total = used, max(used, slots.peak), self.stage.slots

    def _decoded(self, sequence: SequenceState) -> None:
        sequence.phase = Phase.DECODED
        if sequence.text is None:
            sequence.cut = sequence.limited and sequence.sampled >= sequence.most_tokens
        self.release(sequence)
