from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from training.data.store import PHONES
from training.tokenizer.articulation import spell, spelling
from training.tokenizer.model import to_indices


def digits_between(one: str, other: str) -> int:
    table = spelling()
    return int((table[PHONES.index(one)] != table[PHONES.index(other)]).sum())


def test_each_phone_has_a_spelling_of_its_own() -> None:
    table = spelling()
    assert table.shape == (len(PHONES), 4)
    assert set(table.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert len({tuple(row) for row in table.tolist()}) == len(PHONES)


def test_sounds_alike_are_spelled_alike() -> None:
    for one, other in (("p", "b"), ("s", "z"), ("k", "g"), ("n", "m"), ("iy", "ih"), ("s", "sh")):
        assert digits_between(one, other) == 1
    assert digits_between("iy", "g") > 2


@given(st.lists(st.integers(0, len(PHONES) - 1), min_size=2, max_size=20).filter(lambda phones: len(phones) % 2 == 0))
def test_the_token_spells_both_of_its_phones(phones: list[int]) -> None:
    table = spelling()
    digits = spell(torch.tensor([phones]), table)
    assert digits.shape == (1, len(phones) // 2, 8)
    rows = digits.view(-1, 4)
    assert [table.eq(row).all(1).nonzero().item() for row in rows] == phones


def test_silence_is_the_token_of_all_zeros_between_the_values() -> None:
    silence = spell(torch.zeros(1, 2, dtype=torch.long), spelling())
    assert not silence.any()
    assert to_indices(silence).item() == 3280
