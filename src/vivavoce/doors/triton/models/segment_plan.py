"""A request → the segments that are spoken one after the other, without an engine at hand."""

from __future__ import annotations

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.doors.triton.models.spoken_request import SpokenRequest
from vivavoce.engine.request import Conditioning, SynthesisRequest
from vivavoce.service.conditionings import Conditionings
from vivavoce.service.modes import choose_mode, condition, ended
from vivavoce.service.text.frontend import TextFrontEnd
from vivavoce.service.voices.fit import check_fits
from vivavoce.service.voices.voice import Voice


class SegmentPlan:
    """Normalises, splits and conditions as the engine's own front does; safe to use from several threads."""

    def __init__(self, text: TextFrontEnd, config: ModelConfig) -> None:
        self._text, self._config = text, config
        self._conditionings = Conditionings(config)

    def segments(self, wanted: SpokenRequest, voice: Voice) -> list[SynthesisRequest]:
        """One for each segment of the text; their seeds follow one another.

        Raises:
            InvalidText: nothing to speak, too long, or letters that the model lacks.
            InvalidRequest: the voice does not fit the model.
        """
        conditioning = self._conditioning(voice, wanted.instruct)
        return [
            SynthesisRequest(
                conditioning, text=self._text.encode(segment), seed=wanted.seed + place, speed=wanted.speed
            )
            for place, segment in enumerate(self._text.segments(wanted.text))
        ]

    def _conditioning(self, voice: Voice, instruct: str) -> Conditioning:
        if not instruct:
            return self._conditionings.of(voice)
        check_fits(voice, self._config)
        instruction = self._text.encode(self._text.normalize(ended(instruct)))
        return condition(voice, choose_mode(voice, instruct), instruction)
