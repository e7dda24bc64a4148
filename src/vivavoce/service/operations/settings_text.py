"""The settings written out: an example file, and tables for the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from vivavoce.service.operations.settings_fields import SECTIONS, SETTINGS, Setting, written

_HEAD = """\
# Settings of `vivavoce serve`. Every line that is commented out shows the default, or an example where there is none.
# A variable of the environment comes before this file, and a flag before both.
"""


def example_file() -> str:
    """A TOML file with every setting, its meaning, limits, default and variable; it sets nothing."""
    return _HEAD + "".join(_section(section, about) for section, about in SECTIONS.items())


def reference() -> str:
    """All settings as Markdown: a table for each section."""
    return "\n".join("\n".join(_table(section, about)) for section, about in SECTIONS.items())


def default_text(setting: Setting) -> str:
    """The default as TOML writes it; "unset" where it is none."""
    return "unset" if setting.default is None else written(setting.default)


def _section(section: str, about: str) -> str:
    blocks = [f"\n[{section}]  # {about}\n"]
    for setting in _of(section):
        facts = f"Default: {default_text(setting)}; {setting.wanted}. Variable: {setting.variable}"
        lines = [f"# {line}" for line in (setting.meaning, facts)]
        blocks.append("\n" + "\n".join(lines) + f"\n#{setting.field} = {written(setting.example)}\n")
    return "".join(blocks)


def _table(section: str, about: str) -> Iterator[str]:
    yield f"### `[{section}]`\n\n{about}\n"
    yield "| setting | default | what it may be | flag | meaning |"
    yield "|---|---|---|---|---|"
    for setting in _of(section):
        flag = f"`{setting.flag}`" if setting.flag else ""
        yield f"| `{setting.field}` | `{default_text(setting)}` | {setting.wanted} | {flag} | {setting.meaning} |"
    yield ""


def _of(section: str) -> Iterator[Setting]:
    return (setting for setting in SETTINGS.values() if setting.section == section)
