"""What voices bring to the engine, worked out once for each that is in use."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.engine.request import Conditioning
from vivavoce.service.modes import Mode, choose_mode, condition
from vivavoce.service.voices.fit import check_fits
from vivavoce.service.voices.voice import Voice


class Conditionings:
    """A cache over voices, which are values: what was made of one lasts as long as it does. Safe between threads."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._known: WeakKeyDictionary[Voice, dict[Mode, Conditioning]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, voice: Voice, wanted: Mode | None = None) -> Conditioning:
        """A voice in a mode that needs no instruction, or in the fullest one that it allows.

        Raises:
            InvalidRequest: the voice does not fit the model, or lacks what the mode needs.
        """
        with self._lock:
            known = self._known.get(voice)
        if known is None:
            check_fits(voice, self._config)
        mode = choose_mode(voice, None, wanted)
        if known is None or mode not in known:
            made = condition(voice, mode)
            with self._lock:
                known = self._known.setdefault(voice, {})
                known.setdefault(mode, made)
        return known[mode]
