"""One running batch of the flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.work import FlowChunk, PromptWork


class Lane(Protocol):
    """Rows that are computed together, on their way from tokens to mel."""

    rows: Sequence[Row]

    def step(self, number: int) -> None:
        """Take Euler step `number`."""
        ...

    def mels(self) -> list[Tensor | None]:
        """New frames of each row, [2 · hop, bins] float32; None for prompts."""
        ...

    def commit(self) -> None:
        """Keep what the rows' next chunks will need."""
        ...


class FlowJob:
    """Work between `FlowStage.start` and its mel; ends by `result`, by `abandon`, or by a step that fails.

    Args:
        end: given the rows and whether they were finished, settles the books; called once.
    """

    def __init__(
        self,
        work: Sequence[FlowChunk | PromptWork],
        rows: Sequence[Row],
        lanes: Sequence[Lane],
        num_steps: int,
        end: Callable[[FlowJob, bool], None],
    ) -> None:
        self.work, self.rows = work, rows
        self.steps_left = num_steps
        """Euler steps that are still to be taken."""
        self._num_steps, self._lanes, self._end = num_steps, lanes, end
        self._ended = False

    def step(self) -> None:
        """Enqueue one Euler step of the whole batch; a failure abandons the batch."""
        if self._ended or self.steps_left == 0:
            raise ValueError("the batch has no step left")
        try:
            for lane in self._lanes:
                lane.step(self._num_steps - self.steps_left)
        except BaseException:
            self.abandon()
            raise
        self.steps_left -= 1

    def result(self) -> list[Tensor | None]:
        """New frames of each chunk, [2 · hop, bins] float32 on the device, None for prompts; once, after all steps.

        The streams have then spoken them.
        """
        if self._ended or self.steps_left:
            raise ValueError(
                f"the batch has {self.steps_left} steps left" if self.steps_left else "the batch has ended"
            )
        mels: dict[FlowChunk | PromptWork, Tensor | None] = {}
        for lane in self._lanes:
            lane.commit()
            mels.update(zip((row.work for row in lane.rows), lane.mels(), strict=True))
        self._finish(True)
        return [mels.get(one) for one in self.work]

    def abandon(self) -> None:
        """Give the batch up: its streams are as they were before it started. Does nothing once the batch has ended."""
        if not self._ended:
            self._finish(False)

    def _finish(self, done: bool) -> None:
        self._ended = True
        self._lanes = ()
        self._end(self, done)
