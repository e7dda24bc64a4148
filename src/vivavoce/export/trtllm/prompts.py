"""Prompts in the merged model's ids: what calibration and the comparison of logits run on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.spk2info import SpeakerEntry, read_spk2info
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export.trtllm.source import Source

_TEXT, _SPEECH, _IDS = "text_ids", "speech_ids", "ids"
_RANDOM_PROMPTS, _RANDOM_LENGTH = 4, 64


@dataclass(frozen=True)
class Prompt:
    """ids: of the merged model; spoken_from: the first position whose logits choose speech."""

    ids: tuple[int, ...]
    spoken_from: int = 0


def check_ids(field: str, ids: Sequence[int], limit: int) -> None:
    """Refuse ids that are none of 0 … limit − 1: as merged ids they would stand for something else.

    Raises:
        InvalidRequest: there is one; `field` says where.
    """
    strange = [one for one in (min(ids, default=0), max(ids, default=0)) if not 0 <= one < limit]
    if strange:
        raise InvalidRequest(
            f"calibration: {field} has the id {strange[0]}, the model has 0 … {limit - 1}; record the prompts with "
            "this model"
        )


def speech_prompt(vocabulary: MergedVocabulary, text: Sequence[int], speech: Sequence[int], origin: str) -> Prompt:
    """What the model reads of an utterance: `<|sos|>`, text ids, `<|task_id|>`, speech tokens 0 … V − 1.

    Raises:
        InvalidRequest: an id is none of these; the error says that it came from `origin`.
    """
    check_ids(f"{_TEXT} of {origin}", text, vocabulary.text_size)
    check_ids(f"{_SPEECH} of {origin}", speech, vocabulary.num_speech_tokens)
    ids = (vocabulary.sos, *text, vocabulary.task, *(vocabulary.speech(token) for token in speech))
    return Prompt(ids, spoken_from=len(text) + 1)


def voices_prompts(path: Path, vocabulary: MergedVocabulary) -> tuple[Prompt, ...]:
    """A prompt for each speaker of a spk2info.pt who was saved with a recording's text and tokens.

    Raises:
        InvalidRequest: it has ids that the model does not have.
        CheckpointError: it cannot be read.
    """
    return tuple(_speakers_prompts(read_spk2info(path), vocabulary, path))


def read_prompts(path: Path, source: Source) -> tuple[Prompt, ...]:
    """Recorded prompts: a spk2info.pt, or JSON.

    The JSON is a list of objects {"text_ids": […], "speech_ids": […]} with ids of the text tokenizer and speech
    tokens, or {"ids": […]} with ids of the merged model.

    Raises:
        InvalidRequest: it holds no prompts, or ids that the model does not have.
        CheckpointError: it cannot be read.
    """
    if path.suffix == ".pt":
        prompts = voices_prompts(path, _known_vocabulary(path, source))
    else:
        prompts = tuple(_prompt(entry, path, source) for entry in _entries(path))
    if not prompts:
        raise InvalidRequest(f"calibration: {path.name} holds no prompts of speech; give one with text and tokens")
    return prompts


def random_prompts(source: Source) -> tuple[Prompt, ...]:
    """Ids by chance, the same ones every time: they show that two models are the same, not how good one is."""
    generator = torch.Generator().manual_seed(0)

    def draw(below: int) -> list[int]:
        drawn: Tensor = torch.randint(below, (_RANDOM_LENGTH,), generator=generator)
        return drawn.tolist()

    vocabulary = source.vocabulary
    if vocabulary is None:
        return tuple(Prompt(tuple(draw(source.sizes.vocab_size))) for _ in range(_RANDOM_PROMPTS))
    return tuple(
        speech_prompt(vocabulary, draw(vocabulary.text_size), draw(vocabulary.num_speech_tokens), "random prompts")
        for _ in range(_RANDOM_PROMPTS)
    )


def _speakers_prompts(
    entries: Mapping[str, SpeakerEntry], vocabulary: MergedVocabulary, path: Path
) -> Iterable[Prompt]:
    for name, entry in entries.items():
        if entry.prompt is not None:
            text, speech = entry.prompt.text_ids.tolist(), entry.prompt.llm_speech_tokens.tolist()
            yield speech_prompt(vocabulary, text, speech, f"{name!r} in {path.name}")


def _known_vocabulary(path: Path, source: Source) -> MergedVocabulary:
    if source.vocabulary is None:
        raise InvalidRequest(
            f"calibration: {path.name} holds speech tokens, and the model's folder has no tokenizer that says where "
            "they begin; give prompts as merged ids, or convert the official folder"
        )
    return source.vocabulary


def _entries(path: Path) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(f"calibration: {path.name} is no JSON that can be read; check the path") from None
    if not isinstance(data, list) or not all(isinstance(entry, Mapping) for entry in data):
        raise InvalidRequest(f"calibration: {path.name} is no list of prompts; see `convert trtllm --help`")
    return data


def _prompt(entry: Mapping[str, Any], path: Path, source: Source) -> Prompt:
    if _IDS in entry:
        ids = _ids(entry, _IDS, path)
        check_ids(f"{_IDS} of {path.name}", ids, source.sizes.vocab_size)
        return Prompt(ids)
    text, speech = _ids(entry, _TEXT, path), _ids(entry, _SPEECH, path)
    return speech_prompt(_known_vocabulary(path, source), text, speech, path.name)


def _ids(entry: Mapping[str, Any], name: str, path: Path) -> tuple[int, ...]:
    ids = entry.get(name)
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise InvalidRequest(f"calibration: {path.name}: {name} of a prompt is no list of ids; record it again")
    return tuple(ids)
