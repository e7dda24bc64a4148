"""Lists of texts that benchmarks read as the clients of a server do."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivavoce.doors.cli.bench_texts import TextChoice
from vivavoce.errors import InvalidRequest


def choice(content: str) -> TextChoice:
    Path("meta.lst").write_text(content, encoding="utf-8")
    return TextChoice(manifest=Path("meta.lst"))


def test_a_list_has_every_form_that_clients_take() -> None:
    Path("a.wav").touch()
    found = choice(
        "x|its words|a.wav|One\n"
        '{"id": 0, "target_text": "Two", "prompt_audio": "a.wav", "prompt_text": "w"}\n'
        '{"text": "Three", "reference_text": "of nobody"}\n'
    ).read()
    assert [(line.id, line.text, line.voice, line.prompt_text) for line in found] == [
        ("x", "One", Path("a.wav"), "its words"),
        ("0", "Two", Path("a.wav"), "w"),
        ("00003", "Three", None, ""),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a|b|c", "list: line 1 of 'meta.lst' has 3 fields"),
        ("a/b|||One", "name: 'a/b' cannot be a file's name"),
        ("a|||One\na|||Two", "name: 'a' is there more than once"),
    ],
)
def test_lists_that_cannot_be_spoken(content: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        choice(content).read()
