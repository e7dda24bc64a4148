"""Texts → segments for the engine, each with the characters of the text that it speaks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from vivavoce.engine.request import SamplingParams, SynthesisRequest
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.modes import parse_mode
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.text.spans import find_spans
from vivavoce.service.voices.voice import Voice


@dataclass(frozen=True, eq=False)
class Part:
    """A segment: it speaks the characters start … end − 1 of the input."""

    request: SynthesisRequest
    start: int
    end: int


def options_of(order: SpeechOrder) -> SpeakOptions:
    """The manner that an order asks for; InvalidRequest for what is out of its limits."""
    given = {name: value for name, value in asdict(order.sampling).items() if value is not None}
    return SpeakOptions(
        mode=None if order.mode is None else parse_mode(order.mode),
        instruct=order.instruct,
        speed=order.speed,
        seed=order.seed,
        sampling=SamplingParams(**given),
        language=order.language,
    )


def whole_parts(synthesizer: Synthesizer, text: str, voice: Voice, options: SpeakOptions) -> list[Part]:
    """The segments of a text, or of a sentence of it; errors as `Synthesizer.requests`."""
    segments = synthesizer.text.segments(text, options.language)
    requests = synthesizer.segment_requests(segments, voice, options)
    spans = find_spans(text, segments)
    return [Part(request, start, end) for request, (start, end) in zip(requests, spans, strict=True)]


def sentence_parts(
    synthesizer: Synthesizer, sentence: str, start: int, voice: Voice, options: SpeakOptions, place: int
) -> list[Part]:
    """The segments of a sentence that begins at a character of the input and at a place among the segments."""
    parts = whole_parts(synthesizer, sentence, voice, replace(options, seed=options.seed + place))
    return [Part(part.request, start + part.start, start + part.end) for part in parts]
