"""The closed vocabulary's language model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.evaluate.bigram import END, START, bigram_arpa

sentences = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=5), min_size=1, max_size=5)


def read(arpa: str) -> tuple[dict[str, tuple[float, float]], dict[tuple[str, str], float]]:
    """Probabilities by word (with backoff) and by pair."""
    single: dict[str, tuple[float, float]] = {}
    pairs: dict[tuple[str, str], float] = {}
    for line in arpa.splitlines():
        fields = line.split()
        if len(fields) == 3 and _is_number(fields[2]):
            single[fields[1]] = (10 ** float(fields[0]), 10 ** float(fields[2]))
        elif len(fields) == 3:
            pairs[fields[1], fields[2]] = 10 ** float(fields[0])
    return single, pairs


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "").isdigit()


@given(sentences)
def test_what_may_follow_a_word_sums_to_one(said: list[list[str]]) -> None:
    single, pairs = read(bigram_arpa(said))
    vocabulary = {word for sentence in said for word in sentence} | {START, END}
    assert set(single) == vocabulary
    assert sum(probability for probability, _ in single.values()) == pytest.approx(1, abs=1e-4)
    for first in vocabulary - {END}:
        followers = vocabulary - {START}
        if all((first, second) in pairs for second in followers):
            continue  # nothing is left that the discount could go to
        total = sum(pairs.get((first, second), single[first][1] * single[second][0]) for second in followers)
        assert total == pytest.approx(1, abs=1e-4)


def test_pairs_that_occur_are_likelier() -> None:
    single, pairs = read(bigram_arpa([["the", "cat"], ["the", "dog"], ["the", "cat"]]))
    assert pairs["the", "cat"] > pairs["the", "dog"] > single["the"][1] * single[END][0]
    assert pairs[START, "the"] > 0.8


def test_the_header_counts_what_follows() -> None:
    arpa = bigram_arpa([["a", "b"], ["a"]])
    assert arpa.startswith("\\data\\\nngram 1=4\nngram 2=4\n\n\\1-grams:\n")
    assert arpa.endswith("\n\\end\\\n")
