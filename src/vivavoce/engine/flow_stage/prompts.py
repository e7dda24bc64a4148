"""The state of voices' prompts, shared by all who speak with the voice; least recently used ones give way."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from vivavoce.engine.flow_stage.pool import PagePool
from vivavoce.engine.flow_stage.state import RowState


class PromptCache:
    """States by voice. Each is held here, and by the streams that began with it."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._states: OrderedDict[bytes, RowState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RowState]:
        return iter(self._states.values())

    def get(self, voice: bytes | None) -> RowState | None:
        """The state of a voice's prompt; None: it is not here, or the voice has none."""
        return None if voice is None else self._states.get(voice)

    def use(self, voice: bytes) -> None:
        """Note that a stream begins with it."""
        self._states.move_to_end(voice)

    def add(self, voice: bytes, state: RowState) -> None:
        """Take over a state that its maker holds; one that is here already is kept in its stead."""
        if voice in self._states:
            self._pool.release(state.pages)
        else:
            self._states[voice] = state

    def could_free(self) -> int:
        """Pages of the prompts that nobody uses."""
        return sum(len(state.pages) for state in self._states.values() if self._unused(state))

    def make_room(self, pages: int) -> bool:
        """Drop prompts that nobody uses, oldest first, until so many pages are free; False: not enough could be.

        Nothing is dropped in vain.
        """
        if self._pool.free + self.could_free() < pages:
            return False
        while self._pool.free < pages:
            self._drop(next(voice for voice, state in self._states.items() if self._unused(state)))
        return True

    def _drop(self, voice: bytes) -> None:
        self._pool.release(self._states.pop(voice).pages)

    def _unused(self, state: RowState) -> bool:
        return all(self._pool.holders(page) == 1 for page in state.pages)
