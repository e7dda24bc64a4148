"""Streaming of text: arranges a sequence so that speech tokens can be generated while the text is still arriving.

The model was trained on sequences that alternate 5 text tokens with 15 speech tokens; a *fill* token asks for more
text. A `TextInterleaver` controls one sequence. The caller pushes text ids, feeds the rows of `next_rows()` to the
language model, samples an id (a speech token, or an id of `allows()`), and passes the id to `accept()`:

    waiting ──text arrives, a block is complete──▶ decoding ──fill──▶ waiting
    waiting ──text closed──▶ finishing ──end, or the limit──▶ done

As in the official code, each arriving text token starts at most one block, and when the text is closed, the last fed
row is fed again before the rest of the text.

A system prompt (CosyVoice3) is fed first, as a whole. If no prompt speech follows, the official code then decodes 15
speech tokens before the model has any text, which gives 0.6 s of speech without text. This class feeds the first block
of text before these tokens, as in training; `at_once` selects the official order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from vivavoce.checkpoint.config import Vocabulary


class RowKind(Enum):
    CONTROL = auto()
    TEXT = auto()
    SPEECH = auto()
    SPEAKER = auto()  # the projected speaker embedding of the sequence (CosyVoice 1)


class Row(NamedTuple):
    kind: RowKind
    id: int


class _State(Enum):
    WAITING = auto()
    DECODING = auto()
    FINISHING = auto()
    DONE = auto()


class TextInterleaver:
    def __init__(
        self,
        vocabulary: Vocabulary,
        mix: tuple[int, int],
        prompt_text: Sequence[int] = (),
        prompt_speech: Sequence[int] = (),
        max_ratio: float = 20.0,
        system_text: Sequence[int] = (),
        at_once: bool = False,
    ) -> None:
        self._vocabulary, (self._mix_text, self._mix_speech) = vocabulary, mix
        self._incoming: deque[int] = deque()
        self._buffer: deque[int] = deque(prompt_text)
        self._prompt_speech: deque[int] = deque(prompt_speech)
        self._pending = [Row(RowKind.CONTROL, vocabulary.sos), *(Row(RowKind.TEXT, one) for one in system_text)]
        self._rows_before_text = 1 if at_once else len(self._pending)
        prompted = len(prompt_speech)
        self._next_fill = (prompted // self._mix_speech + 1) * self._mix_speech - prompted
        self._max_ratio, self._num_text, self._closed = max_ratio, 0, False
        self._state = _State.WAITING
        self.decoded: list[int] = []  # all sampled ids, including fill and end tokens

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    def push(self, ids: Sequence[int]) -> None:
        self._incoming.extend(ids)
        self._num_text += len(ids)

    def close(self) -> None:
        self._closed = True

    def next_rows(self) -> list[Row] | None:
        """Return the rows to feed next; None while waiting for text, and after the end."""
        while self._state is _State.WAITING:
            if self._incoming:
                self._buffer.append(self._incoming.popleft())
                self._arrange()
            elif self._closed:
                self._pending += self._take_text(len(self._buffer))
                self._pending.append(Row(RowKind.CONTROL, self._vocabulary.task))
                self._state = _State.FINISHING
            else:
                return None
        return None if self.done else self._pending

    def ids_until_control(self) -> int | None:
        """Return the number of speech tokens until the block is full and a fill token must come; after all text is fed,
        the maximum number of further speech tokens, or None without a limit."""
        if self._state is not _State.FINISHING:
            return self._next_fill - len(self.decoded)
        most = self._max_ratio * self._num_text
        return None if math.isinf(most) else max(1, math.ceil(most) - len(self.decoded))

    def allows(self) -> tuple[int, ...]:
        """Return the control ids that may be sampled now, in addition to speech tokens."""
        return (self._vocabulary.eos,) if self._state is _State.FINISHING else (self._vocabulary.fill,)

    def accept(self, sampled: int) -> int | None:
        """Record the id that was sampled after the last rows; return it if it is a speech token, else None."""
        count = len(self.decoded)
        self.decoded.append(sampled)
        if sampled < self._vocabulary.num_speech_tokens:
            self._pending = [Row(RowKind.SPEECH, sampled)]
            if self._state is _State.FINISHING and count + 1 >= self._max_ratio * self._num_text:
                self._state = _State.DONE
            return sampled
        if self._state is _State.FINISHING:
            self._state = _State.DONE
        else:
            self._next_fill = count + self._mix_speech + 1
            self._state = _State.WAITING
        return None

    def _arrange(self) -> None:
        while self._prompt_speech and len(self._buffer) >= self._mix_text:
            self._pending += self._take_text(self._mix_text)
            count = min(self._mix_speech, len(self._prompt_speech))
            self._pending += [Row(RowKind.SPEECH, self._prompt_speech.popleft()) for _ in range(count)]
        if self._prompt_speech:
            return
        after_fill = bool(self.decoded)
        if after_fill or len(self._pending) == self._rows_before_text:
            if len(self._buffer) < self._mix_text:
                return
            block = self._take_text(self._mix_text)
            self._pending = block if after_fill else self._pending + block
        self._state = _State.DECODING

    def _take_text(self, count: int) -> list[Row]:
        return [Row(RowKind.TEXT, self._buffer.popleft()) for _ in range(count)]
