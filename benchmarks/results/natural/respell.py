"""Converts a checkpoint with the mini model's former speech tokens to its present tokens.

    python benchmarks/results/natural/respell.py OLD NEW

A former token spelled two phones of 20 ms. In the tables of the language model and the flow, each new token gets the
row of the former token that spelled its phone twice; a token that spells no phone begins at zero. This program was run
once, before the training that `docs/training.md` describes, and is kept to document the start of that training.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivavoce.models.generations import NETWORKS
from vivavoce_training.data.spelling import NUM_CODES, PHONES, SILENCE, digits_of, spell
from vivavoce_training.weights import checkpoint_config, load_part, save_part

OLD_SPELLING = {
    "pau": "1111", "i": "0001", "ɪ": "0000", "ɛ": "0010", "A": "0012", "æ": "0020", "a": "0020", "I": "0022",
    "ə": "0110", "ɜ": "0111", "ʌ": "0120", "W": "0122", "Q": "0212", "u": "0201", "ʊ": "0200", "O": "0212",
    "Y": "0211", "ɔ": "0210", "ɑ": "0220", "ɒ": "0220", "m": "1000", "n": "1100", "ŋ": "1200", "l": "1120",
    "ɹ": "1122", "w": "1022", "j": "1222", "p": "2000", "b": "2002", "t": "2100", "T": "2102", "d": "2102",
    "k": "2200", "ɡ": "2202", "ʔ": "2100", "f": "2010", "v": "2012", "s": "2110", "z": "2112", "ʃ": "2210",
    "ʒ": "2212", "h": "2211", "θ": "2020", "ð": "2022", "ʧ": "2220", "ʤ": "2222",
}  # fmt: skip
UNKNOWN_BIAS = -4.0


def old_tokens() -> Tensor:
    """[6561]: the old token whose row each new token gets, or -1."""
    none = np.zeros(len(PHONES), np.int8)
    numbers = np.arange(len(PHONES), dtype=np.uint8)
    heads = digits_of(spell(numbers, none, none.astype(np.float32), none))[:, :4]
    twice = [sum(int(digit) * 3**place for place, digit in enumerate(2 * OLD_SPELLING[phone])) for phone in PHONES]
    known = {tuple(head): token for head, token in zip(heads.tolist(), twice, strict=True)}
    return torch.tensor([known.get(tuple(row[:4]), -1) for row in digits_of(np.arange(NUM_CODES)).tolist()])


@torch.no_grad()
def take_over(table: Tensor, source: Tensor, unknown: float = 0.0) -> None:
    """Fill the rows of new tokens with those of the old tokens `source`, or with `unknown` where it is -1."""
    rows = table[:NUM_CODES].clone()[source.clamp(min=0)]
    known = (source >= 0).view(-1, *[1] * (table.dim() - 1))
    table[:NUM_CODES] = torch.where(known, rows, torch.tensor(unknown))


def main(old: Path, new: Path) -> None:
    shutil.copytree(old, new)
    config, source = checkpoint_config(old), old_tokens()
    lm, flow = NETWORKS[config.generation]["lm"], NETWORKS[config.generation]["flow"]
    model = lm.build(config)
    load_part(model, old, lm)
    for name, unknown in (
        ("speech_embedding.weight", 0.0),
        ("speech_head.weight", 0.0),
        ("speech_head.bias", UNKNOWN_BIAS),
    ):
        take_over(model.get_parameter(name), source, unknown)
    save_part(new, model.state_dict(), lm)
    model = flow.build(config)
    load_part(model, old, flow)
    take_over(model.get_parameter("token_embedding.weight"), source)
    save_part(new, model.state_dict(), flow)


if __name__ == "__main__":
    assert PHONES[SILENCE] in OLD_SPELLING
    main(Path(sys.argv[1]), Path(sys.argv[2]))
