"""The mini model's text tokenizer: Qwen2's files with few merges, learned from the training texts.

The vocabulary is small because every id costs a row of the embedding. It is not byte by byte either: an utterance
should have at least two speech tokens per text token, which is the shortest that the official decoding allows, and
about three for text that arrives while it is spoken (5 text tokens to 15 speech tokens).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

NUM_MERGES = 256
QWEN2_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"


def learn_tokenizer(texts: Iterable[str], folder: Path) -> None:
    """Write vocab.json, merges.txt and tokenizer_config.json to `folder`; the same texts give the same files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_order)
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + NUM_MERGES, initial_alphabet=alphabet, show_progress=False, max_token_length=4
    )
    tokenizer.train_from_iterator(texts, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in learned["merges"]]
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    flags = {**dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False), "special": True}
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {
            str(len(vocabulary) + number): {"content": token, **flags} for number, token in enumerate(QWEN2_TOKENS)
        },
        "additional_special_tokens": list(QWEN2_TOKENS[1:]),
        "eos_token": QWEN2_TOKENS[2],
        "pad_token": QWEN2_TOKENS[0],
        "model_max_length": 32768,
    }
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "vocab.json", vocabulary)
    _write_json(folder / "tokenizer_config.json", settings)
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _byte_order(symbol: str) -> tuple[bool, int]:
    """Symbols that stand for themselves first, then the stand-ins for unprintable bytes."""
    return ord(symbol) > 0xFF, ord(symbol)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
