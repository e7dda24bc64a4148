"""The settings written out: the example file says what holds, and the documentation keeps step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vivavoce.service.operations.settings import ServerSettings
from vivavoce.service.operations.settings_fields import SETTINGS, masked, plain
from vivavoce.service.operations.settings_resolve import resolve_settings, try_settings
from vivavoce.service.operations.settings_text import example_file, reference
from vivavoce.service.operations.toml_file import parse_toml

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "configuration.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->"


def in_force(text: str) -> str:
    """The example with its settings no longer commented out."""
    return re.sub(r"^#(?=[a-z])", "", text, flags=re.MULTILINE)


def test_the_example_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "vivavoce.toml").write_text(example_file(), encoding="utf-8")
    assert resolve_settings(tmp_path / "vivavoce.toml").settings == ServerSettings()


def test_the_example_holds_every_setting_and_its_default(tmp_path: Path) -> None:
    values = parse_toml(in_force(example_file()).encode(), Path("example"), "config").values
    assert {f"{section}.{field}" for section, table in values.items() for field in table} == set(SETTINGS)
    defaults = {name: plain(setting.default) for name, setting in SETTINGS.items() if plain(setting.default)}
    assert defaults == {name: values[name.partition(".")[0]][name.partition(".")[2]] for name in defaults}


def test_every_example_may_be(tmp_path: Path) -> None:
    (tmp_path / "vivavoce.toml").write_text(in_force(example_file()), encoding="utf-8")
    _, problems = try_settings(tmp_path / "vivavoce.toml", {}, {})
    assert problems == []


def test_the_documentation_keeps_step() -> None:
    _, _, rest = DOCUMENTATION.read_text(encoding="utf-8").partition(BEGIN)
    table, end, _ = rest.partition(END)
    assert end, "the marks around the tables are gone"
    assert table == reference()


def test_every_setting_explains_itself() -> None:
    for name, setting in SETTINGS.items():
        assert setting.meaning.endswith("."), name
        assert setting.default is not None or setting.example is not None, f"{name} is unset, and has no example"
        assert setting.wanted, name
        assert "|" not in setting.meaning, f"{name}: it would break a table"
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:secret@host:6379/0", "redis://***@host:6379/0"),
        ("redis://me:se/cr@t@host", "redis://***@host"),
        ("redis://host?db=1&password=secret&x=1", "redis://host?db=1&password=***&x=1"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_secrets_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
