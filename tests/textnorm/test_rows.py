"""Every rule of a language reads something: its examples, and a text of the tables beside this file."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.textnorm.acceptable import load_cases
from vivavoce_textnorm import reader
from vivavoce_textnorm.rules import BoundRule, Rule, table_rules
from vivavoce_textnorm.verbalizer import VERBALIZERS, Verbalizer, load_verbalizer

Row = tuple[str, str]
"""A rule's pattern as it is written, and its name."""


@cache
def rules_of(language: str) -> tuple[Rule, ...]:
    voice = load_verbalizer(language)
    assert voice is not None
    return table_rules(voice.locale)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[Row]:
    """The rules that have said something."""
    found: set[Row] = set()

    def recording(row: Row, rule: BoundRule) -> BoundRule:
        def say(voice: Any, match: Any) -> str | None:
            said = rule.say(voice, match)
            if said is not None:
                found.add(row)
            return said

        return replace(rule, say=say)

    @cache
    def recorded(language: str) -> Verbalizer | None:
        if (voice := load_verbalizer(language)) is None:
            return None
        own = type(voice)(language)
        rows = [(rule.pattern, rule.name) for rule in rules_of(language)]
        own.rules = tuple(map(recording, rows, own.rules))
        return own

    monkeypatch.setattr(reader, "load_verbalizer", recorded)
    return found


@pytest.mark.slow
def test_every_rule_is_needed_by_a_text_of_the_tables(used: set[Row]) -> None:
    """Rules that several languages share are needed if one of these uses them."""
    for language in VERBALIZERS:
        for case in load_cases(language):
            reader.read(case.text.replace("⏎", "\n").replace("⇥", "\t"), language)
    rows = {(rule.pattern, rule.name) for language in VERBALIZERS for rule in rules_of(language)}
    assert len(rows) > 200
    assert not rows - used


@pytest.mark.parametrize("language", VERBALIZERS)
def test_examples_are_read_by_their_rule(language: str, used: set[Row]) -> None:
    for rule in rules_of(language):
        for written, spoken in rule.examples.items():
            used.clear()
            assert reader.read(written, language).spoken == spoken, rule
            assert (rule.pattern, rule.name) in used, (rule, written)


def test_every_rule_has_an_example() -> None:
    shown = {(rule.pattern, rule.name) for language in VERBALIZERS for rule in rules_of(language) if rule.examples}
    rows = {(rule.pattern, rule.name) for language in VERBALIZERS for rule in rules_of(language)}
    assert rows == shown


@pytest.mark.parametrize("language", VERBALIZERS)
def test_no_rule_looks_ahead_without_a_limit(language: str) -> None:
    """Otherwise each "1." of "1.1.1.1. …" would look through the whole rest, and a long text would take minutes."""
    endless = re.compile(r"(?:\(\?x\))?\s*(?:\(\?=\[[^]]*\](?:\{[\d,]+\}\+?)?[^)]*\))*\(\?=\[[^]]*\][*+]")
    assert not [rule.pattern for rule in rules_of(language) if endless.match(rule.pattern)]
