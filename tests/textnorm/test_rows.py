"""Every rule that a table writes reads something: a text of the tables beside this file needs it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.textnorm.acceptable import load_cases
from vivavoce_textnorm import reader
from vivavoce_textnorm.rules import Rule
from vivavoce_textnorm.verbalizer import MODULES, Verbalizer, load_verbalizer


def test_every_rule_of_a_table_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of a table that others add to are needed if one of these uses them."""
    written: dict[str, bool] = {}

    def recording(row: str, rule: Rule) -> Rule:
        def say(voice: Any, found: Any) -> str | None:
            said = rule.say(voice, found)
            written[row] |= said is not None
            return said

        written.setdefault(row, False)
        return replace(rule, say=say)

    @cache
    def recorded(language: str) -> Verbalizer | None:
        if (voice := load_verbalizer(language)) is None:
            return None
        own, rows = type(voice)(language), voice.locale.sections["rules"].splitlines()
        own.rules = tuple(map(recording, rows, own.rules))
        return own

    monkeypatch.setattr(reader, "load_verbalizer", recorded)
    for language in MODULES:
        for case in load_cases(language):
            reader.read(case.text.replace("⏎", "\n").replace("⇥", "\t"), language)
    assert len(written) > 200
    idle = [row for row, used in written.items() if not used]
    assert not idle, "\n".join(idle)
