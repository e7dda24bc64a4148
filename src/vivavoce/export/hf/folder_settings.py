"""What the small files of a merged Hugging Face folder say: where speech begins, and the model's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vivavoce.checkpoint.config import LMConfig, SamplingDefaults, Vocabulary
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.checkpoint.settings_reader import MAX_BLOCKS, Section
from vivavoce.errors import CheckpointError
from vivavoce.export.hf.config import REMEDY, check_features, read_json, rope_theta
from vivavoce.export.hf.tokenizer import EOS, SOS, SPEECH_START, TASK
from vivavoce.export.hf.write import CONFIG, SPEECH, TOKENIZER, TOKENIZER_CONFIG

_ADDED_TOKENS = "added_tokens.json"
_SPOKEN = (SPEECH_START, *EOS)
_WANTED = (*_SPOKEN, SOS, TASK)
_RELEASE = {"mix_ratio": [5, 15], "sampling": {"top_p": 0.8, "top_k": 25, "win_size": 10, "tau_r": 0.1}}
"""What `speech_lm.json` would say of the CosyVoice2 release, for folders without it."""


def read_vocabulary(folder: Path) -> MergedVocabulary:
    """Where speech begins in a merged folder, and how many tokens it has, as the tokenizer's files say.

    Raises:
        CheckpointError: no file knows the added tokens, or their order is not the merged model's.
    """
    vocabulary = find_vocabulary(folder)
    if vocabulary is None:
        raise CheckpointError(f"{folder.name}: no tokenizer file has {', '.join(_SPOKEN)}; {REMEDY}")
    return vocabulary


def find_vocabulary(folder: Path) -> MergedVocabulary | None:
    """As `read_vocabulary`; None for a folder whose tokenizer, if it has one, knows nothing of speech.

    Raises:
        CheckpointError: some of the added tokens are missing, or their order is not the merged model's.
    """
    ids = _added_ids(folder)
    if not ids.keys() & {*_SPOKEN}:
        return None
    missing = [token for token in _WANTED if token not in ids]
    if missing:
        raise CheckpointError(f"{folder.name}: no tokenizer file has {', '.join(missing)}; {REMEDY}")
    vocabulary = MergedVocabulary(ids[SPEECH_START], ids[EOS[0]] - ids[SPEECH_START])
    expected = [vocabulary.text_size, *vocabulary.eos_ids, vocabulary.sos, vocabulary.task]
    in_order = [ids[token] for token in _WANTED] == expected
    if not in_order or vocabulary.text_size < 1 or vocabulary.num_speech_tokens < 1:
        found = ", ".join(f"{token} {ids[token]}" for token in _WANTED)
        raise CheckpointError(
            f"{folder.name}: the added tokens are not in the merged model's order ({found}); {REMEDY}"
        )
    return vocabulary


def _added_ids(folder: Path) -> dict[str, int]:
    """Ids by token, from every place in which tokenizers keep added tokens."""
    ids: dict[str, int] = {}
    for name, read in _ADDED_IDS.items():
        if (folder / name).is_file():
            data = read_json(folder / name)
            try:
                ids |= {token: _whole(token_id) for token, token_id in read(data)}
            except (AttributeError, KeyError, TypeError, ValueError):
                raise CheckpointError(f"{name}: its added tokens cannot be read; {REMEDY}") from None
    return ids


def _ids_listed(data: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return [(token["content"], token["id"]) for token in data.get("added_tokens") or ()]


def _ids_as_keys(data: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    decoder = data.get("added_tokens_decoder") or {}
    return [(token["content"], int(token_id)) for token_id, token in decoder.items()]


def _whole(token_id: Any) -> int:
    if type(token_id) is not int:
        raise ValueError(token_id)
    return token_id


_ADDED_IDS: dict[str, Callable[[dict[str, Any]], Iterable[tuple[str, Any]]]] = {
    TOKENIZER_CONFIG: _ids_as_keys,
    _ADDED_TOKENS: dict.items,
    TOKENIZER: _ids_listed,
}
"""Readers of the files that may have them; the last one has the last word."""


def read_lm_config(folder: Path, vocabulary: MergedVocabulary) -> LMConfig:
    """Our configuration of the model; the text vocabulary is what the tokenizer uses, without padding.

    Raises:
        CheckpointError: a setting is missing, of the wrong kind, or out of its range.
        UnsupportedModel: no Qwen2, or one with a feature that `SpeechLM` lacks.
    """
    data = read_json(folder / CONFIG)
    check_features(data)
    settings = Section(CONFIG, data)
    speech = Section(SPEECH, read_json(folder / SPEECH) if (folder / SPEECH).is_file() else _RELEASE)
    mix = speech.integers("mix_ratio")
    if len(mix) != 2:
        raise CheckpointError(f"{SPEECH}: mix_ratio: {list(mix)} are not two numbers; {REMEDY}")
    num_tokens = vocabulary.num_speech_tokens
    return LMConfig(
        hidden_size=settings.integer("hidden_size"),
        intermediate_size=settings.integer("intermediate_size"),
        num_layers=settings.integer("num_hidden_layers", maximum=MAX_BLOCKS),
        num_heads=settings.integer("num_attention_heads"),
        num_kv_heads=settings.integer("num_key_value_heads"),
        text_vocab_size=vocabulary.text_size,
        rms_norm_eps=settings.number("rms_norm_eps"),
        rope_theta=rope_theta(data),
        max_positions=settings.integer("max_position_embeddings"),
        mix_text=mix[0],
        mix_speech=mix[1],
        vocabulary=Vocabulary(
            num_speech_tokens=num_tokens,
            num_logits=num_tokens + len(EOS),
            sos=0,
            task=1,
            eos=num_tokens,
            fill=num_tokens + 2,
            masked_before_minimum=num_tokens,
        ),
        sampling=_sampling(speech.section("sampling")),
    )


def _sampling(sampling: Section) -> SamplingDefaults:
    return SamplingDefaults(
        top_p=sampling.number("top_p"),
        top_k=sampling.integer("top_k"),
        win_size=sampling.integer("win_size", minimum=0),
        tau_r=sampling.number("tau_r"),
    )
