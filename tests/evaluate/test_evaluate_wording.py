"""Which words and characters are compared."""

from __future__ import annotations

import pytest

from vivavoce.evaluate.wording import characters, is_unspaced, num_characters, split_like, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's a well-known FACT.", ["it's", "a", "well", "known", "fact"]),
        ("‘Don’t’, she said…", ["don't", "she", "said"]),
        ("five  o'clock\tnow", ["five", "o'clock", "now"]),
        ("Ｆｕｌｌ　ｗｉｄｔｈ ４２", ["full", "width", "42"]),
        ("naïve Žižek", ["naïve", "žižek"]),
        ("'quoted' rock 'n' roll", ["quoted", "rock", "n", "roll"]),
        ("snake_case", ["snake", "case"]),
        ("... !", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_chinese_is_compared_by_characters() -> None:
    assert characters("你好，世界！Hello world 2个") == ["你", "好", "世", "界", "hello", "world", "2", "个"]
    assert characters("カタカナとひらがな") == list("カタカナとひらがな")
    assert split_like("你好") is characters
    assert split_like("hello") is words
    assert is_unspaced("a 中 b")
    assert not is_unspaced("안녕 하세요")


def test_only_what_is_spoken_counts_as_a_character() -> None:
    assert num_characters("It's 11:42!") == 4 + 4
    assert num_characters("你好，世界。") == 4
    assert num_characters("—") == 0
