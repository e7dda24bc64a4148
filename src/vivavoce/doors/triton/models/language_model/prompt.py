"""Prompts of the merged language model: `<|sos|>`, text ids, `<|task_id|>`, speech ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.errors import InvalidRequest


@dataclass(frozen=True)
class SpeechPrompt:
    """text: text ids; speech: speech tokens of a reference, 0 … V − 1."""

    text: tuple[int, ...]
    speech: tuple[int, ...]


def read_prompt(vocabulary: MergedVocabulary, ids: Sequence[int]) -> SpeechPrompt:
    """The parts of a prompt in merged ids.

    Raises:
        InvalidRequest: it is built otherwise, has no text, or an id stands where it cannot; the message says which.
    """
    if not ids or ids[0] != vocabulary.sos:
        found = "nothing" if not ids else str(ids[0])
        raise InvalidRequest(f"input_ids: begin with {found}, not with <|sos|> ({vocabulary.sos}); put it first")
    if vocabulary.task not in ids:
        raise InvalidRequest(f"input_ids: no <|task_id|> ({vocabulary.task}); put it after the text")
    end = list(ids).index(vocabulary.task)
    text, speech = tuple(ids[1:end]), tuple(ids[end + 1 :])
    if not text:
        raise InvalidRequest("input_ids: no text between <|sos|> and <|task_id|>; give some")
    _check(text, 1, 0, vocabulary.text_size, "text")
    first = vocabulary.speech(0)
    _check(speech, end + 1, first, first + vocabulary.num_speech_tokens, "speech")
    return SpeechPrompt(text, tuple(one - first for one in speech))


def _check(ids: Sequence[int], place: int, low: int, end: int, what: str) -> None:
    wrong = next((number for number, one in enumerate(ids) if not low <= one < end), None)
    if wrong is not None:
        raise InvalidRequest(
            f"input_ids: {ids[wrong]} at place {place + wrong} is no {what} id of this model ({low} … {end - 1}); use "
            "the tokenizer of its merged folder"
        )
