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


def speech_prompt(vocabulary: MergedVocabulary, text: Sequence[int], speech: Sequence[int]) -> Prompt:
    """What the model reads of an utterance: `<|sos|>`, text ids, `<|task_id|>`, speech tokens 0 … V − 1."""
    ids = (vocabulary.sos, *text, vocabulary.task, *(vocabulary.speech(token) for token in speech))
    return Prompt(ids, spoken_from=len(text) + 1)


def voices_prompts(path: Path, vocabulary: MergedVocabulary) -> tuple[Prompt, ...]:
    """A prompt for each speaker of a spk2info.pt who was saved with a recording's text and tokens."""
    return tuple(_speakers_prompts(read_spk2info(path).values(), vocabulary))


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
    largest = max(max(prompt.ids, default=0) for prompt in prompts)
    least = min(min(prompt.ids, default=0) for prompt in prompts)
    if least < 0 or largest >= source.sizes.vocab_size:
        raise InvalidRequest(
            f"calibration: {path.name} has the id {least if least < 0 else largest}, the model has "
            f"0 … {source.sizes.vocab_size - 1}; record the prompts with this model"
        )
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
        speech_prompt(vocabulary, draw(vocabulary.text_size), draw(vocabulary.num_speech_tokens))
        for _ in range(_RANDOM_PROMPTS)
    )


def _speakers_prompts(entries: Iterable[SpeakerEntry], vocabulary: MergedVocabulary) -> Iterable[Prompt]:
    for entry in entries:
        if entry.prompt is not None:
            text, speech = entry.prompt.text_ids.tolist(), entry.prompt.llm_speech_tokens.tolist()
            yield speech_prompt(vocabulary, text, speech)


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
        return Prompt(_ids(entry, _IDS, path))
    text, speech = _ids(entry, _TEXT, path), _ids(entry, _SPEECH, path)
    return speech_prompt(_known_vocabulary(path, source), text, speech)


def _ids(entry: Mapping[str, Any], name: str, path: Path) -> tuple[int, ...]:
    ids = entry.get(name)
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise InvalidRequest(f"calibration: {path.name}: {name} of a prompt is no list of ids; record it again")
    return tuple(ids)
