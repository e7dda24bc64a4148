from __future__ import annotations

import pytest

from vivavoce_textnorm.verbalizer import Verbalizer, load_verbalizer


@pytest.fixture(scope="module")
def english() -> Verbalizer:
    found = load_verbalizer("en")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "zero"),
        (19, "nineteen"),
        (21, "twenty one"),
        (105, "one hundred and five"),
        (2024, "two thousand and twenty four"),
        (1_234_567, "one million two hundred thirty four thousand five hundred and sixty seven"),
        (7_900_000_000, "seven billion nine hundred million"),
    ],
)
def test_cardinals(english: Verbalizer, value: int, said: str) -> None:
    assert english.cardinal(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(1, "first"), (12, "twelfth"), (20, "twentieth"), (22, "twenty second"), (100, "one hundredth")],
)
def test_ordinals(english: Verbalizer, value: int, said: str) -> None:
    assert english.ordinal(value) == said


def test_fractions(english: Verbalizer) -> None:
    assert english.fraction(0, 3, 4) == "three quarters"
    assert english.fraction(1, 1, 2) == "one and a half"


def test_a_language_without_rules_has_no_verbalizer() -> None:
    assert load_verbalizer("xx") is None
