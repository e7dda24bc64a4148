"""The text tokenizer with the speech ids added: what the merged model's prompts are read by."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer

from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.errors import CheckpointError

SPEECH_START = "<|s_0|>"
EOS = ("<|eos1|>", "<|eos2|>", "<|eos3|>")
SOS, TASK = "<|sos|>", "<|task_id|>"

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- '<|sos|>' + message['content'] + '<|task_id|>' }}"
    "{%- elif message['role'] == 'assistant' %}{{- message['content'] }}"
    "{%- endif %}{%- endfor %}"
)
"""A user says what is to be spoken; an assistant has said speech tokens, `<|s_12|><|s_7|>…`."""

_PAD = "<|endoftext|>"


def add_speech(tokenizer: Tokenizer, vocabulary: MergedVocabulary) -> None:
    """Add the speech and control ids after the text's, in place.

    Speech tokens are no special tokens: decoding keeps them where it drops those. What ends speech or frames the text
    is special.

    Raises:
        CheckpointError: they cannot get the ids that the merged model has for them.
    """
    added = vocabulary.added_tokens()
    control = frozenset((*EOS, SOS, TASK))
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=token in control) for token in added])
    for expected, token in enumerate(added, start=vocabulary.text_size):
        given = tokenizer.token_to_id(token)
        if given != expected:
            raise CheckpointError(
                f"tokenizer: {token} gets the id {given} and not {expected}; its own ids have gaps or hold that token "
                "already, so copy the model's CosyVoice-BlankEN folder again, whole"
            )


def padding_token(tokenizer: Tokenizer) -> str:
    """What fills the shorter prompts of a batch: Qwen2's token for it, where there is one."""
    return EOS[0] if tokenizer.token_to_id(_PAD) is None else _PAD


def tokenizer_config(tokenizer: Tokenizer, max_length: int) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; tokenizer: the merged one; max_length: the model's positions."""
    return {
        # Read as it is written, whatever a library believes of Qwen2's tokenizers.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": None,
        "eos_token": EOS[0],
        "pad_token": padding_token(tokenizer),
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
