"""What a reload takes over at once, what needs a new engine, and what a restart; the documents say the same."""

from __future__ import annotations

import re
from pathlib import Path

from vivavoce.server.settings import ServerSettings
from vivavoce.server.settings_sources import SETTINGS
from vivavoce_fleet.reload import Changes, changes_between, with_values

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
OLD = ServerSettings()


def settings(**sections: dict[str, object]) -> ServerSettings:
    return ServerSettings.model_validate(sections)


def all_changed(upstream: str | None = None) -> Changes:
    """As if every setting had another value."""

    class Other:
        def __getattr__(self, _: str) -> Other:
            return Other()

    old = OLD.model_copy(update={"server": OLD.server.model_copy(update={"upstream": upstream})})
    return changes_between(old, Other())  # type: ignore[arg-type]


def test_each_setting_is_of_one_kind() -> None:
    found = all_changed()
    names = [*found.at_once, *found.by_a_new_engine, *found.by_a_restart]
    assert sorted(names) == sorted(SETTINGS)
    assert "server.port" in found.by_a_restart
    assert {"model.model", "engine.slots"} <= set(found.by_a_new_engine)
    assert {"logging.level", "voices.default"} <= set(found.at_once)
    assert set(found.by_a_restart) >= {"model.gpus", "model.engines", "voices.place", "auth.keys_file"}


def test_without_an_engine_its_settings_need_a_restart() -> None:
    found = all_changed("triton://localhost:8001")
    assert found.by_a_new_engine == ()
    assert not [name for name in found.at_once if name.startswith(("voices.", "model."))]
    assert "logging.level" in found.at_once


def test_only_what_is_named_changes() -> None:
    new = settings(logging={"level": "debug"}, server={"port": 1, "drain_s": 5}, model={"dtype": "float32"})
    changes = changes_between(OLD, new)
    assert changes == Changes(("server.drain_s", "logging.level"), ("model.dtype",), ("server.port",))
    taken = with_values(OLD, new, changes.at_once)
    assert (taken.server.drain_s, taken.server.port, taken.model.dtype) == (5, OLD.server.port, "auto")
    assert changes_between(taken, new) == Changes((), ("model.dtype",), ("server.port",))
    assert with_values(OLD, new, SETTINGS) == new


def test_the_documents_name_them() -> None:
    text = OPERATING.read_text(encoding="utf-8")
    table = text[text.index("| setting | a reload |") :].split("\n\n")[0]
    told: dict[str, str] = {}
    for names, what in re.findall(r"^\| (`.+?`) \| (.+?) \|$", table, re.MULTILINE):
        for name in re.findall(r"`([\w.*]+)`", names):
            section, _, field = name.partition(".")
            told |= {one: what for one in SETTINGS if one == name or (field == "*" and one.startswith(f"{section}."))}
    found = all_changed()
    for names, word in ((found.at_once, "at once"), (found.by_a_new_engine, "a new engine")):
        assert {name for name, what in told.items() if what.startswith(word)} == set(names)
