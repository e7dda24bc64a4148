"""Learns the mini model's text tokenizer from the training texts. Its files are like Qwen2's, with fewer merges.

The vocabulary is small because every id costs a row of the embedding. But a token of a single byte would be too short:
an utterance needs at least two speech tokens per text token, the minimum of the official decoding, and about three if
its text arrives in pieces (5 text tokens to 15 speech tokens).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from vivavoce_bench.random_checkpoint import byte_symbols, write_tokenizer

NUM_MERGES = 256
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
    alphabet = byte_symbols()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + NUM_MERGES, initial_alphabet=alphabet, show_progress=False, max_token_length=4
    )
    tokenizer.train_from_iterator(texts, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in learned["merges"]]
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, vocabulary, merges)
