"""Whisper as a recogniser, through the optional package faster-whisper."""

from __future__ import annotations

from typing import Any

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_bench.evaluate.speaking import Samples

DEFAULT_MODEL = "base"
BEAMS = 5


class Whisper:
    """Knows no closed vocabulary and no phones; numbers and abbreviations may come back as digits and letters."""

    def __init__(self, model: str = DEFAULT_MODEL, language: str | None = None) -> None:
        """model: a name that faster-whisper downloads, or a folder; language: None: detected for each utterance.

        MissingDependency: the package is not installed; InvalidRequest: the model cannot be loaded.
        """
        try:
            from faster_whisper import WhisperModel
        except ImportError:
            raise MissingDependency(
                "recogniser: faster-whisper is not installed; pip install faster-whisper, or take pocketsphinx"
            ) from None
        try:
            self._model: Any = WhisperModel(model, device="auto", compute_type="int8")
        except Exception as error:  # the package's errors have no common base class
            raise InvalidRequest(f"whisper: {model!r} cannot be loaded ({error}); name a model or a folder") from error
        self._language = language

    def transcribe(self, samples: Samples) -> str:
        """The words; samples: [n] float32 in ±1 at 16 kHz."""
        segments, _ = self._model.transcribe(
            samples,
            language=self._language,
            beam_size=BEAMS,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)
