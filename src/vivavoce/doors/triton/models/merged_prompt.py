"""What the merged language model is asked to continue, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.engine.request import SynthesisRequest

USUAL_TOKENS = 750
"""Speech tokens of a segment at most, half a minute, unless its text is long."""
_LONG_RATIO = 10.0
"""Speech tokens per text token that no voice reaches: so many are allowed a text that may need more than the usual."""


@dataclass(frozen=True)
class OutputLength:
    """Least and most speech tokens."""

    least: int
    most: int


def merged_prompt(vocabulary: MergedVocabulary, segment: SynthesisRequest) -> tuple[int, ...]:
    """`<|sos|>`, the reference's text and the segment's, `<|task_id|>`, the reference's speech, as merged ids.

    The two texts are tokenised apart, as the model was trained with; text ids are the same in both vocabularies.
    """
    voice = segment.conditioning
    speech = map(vocabulary.speech, voice.lm_prompt_tokens)
    return (vocabulary.sos, *voice.lm_prompt_text, *segment.text, vocabulary.task, *speech)


def output_length(segment: SynthesisRequest) -> OutputLength:
    """By the length of the segment's text, as the engine bounds it, and `USUAL_TOKENS`."""
    size, bounds = len(segment.text), segment.sampling
    most = min(int(bounds.max_ratio * size), max(USUAL_TOKENS, int(_LONG_RATIO * size)))
    return OutputLength(max(1, min(int(bounds.min_ratio * size), most)), most)


def spoken_tokens(vocabulary: MergedVocabulary, ids: Sequence[int]) -> tuple[tuple[int, ...], int | None]:
    """Speech tokens (0 … V − 1) before the first id that is none, and that id: it ends the speech; None: none did."""
    count = next((place for place, one in enumerate(ids) if not vocabulary.is_speech(one)), len(ids))
    tokens = tuple(one - vocabulary.text_size for one in ids[:count])
    return tokens, ids[count] if count < len(ids) else None
