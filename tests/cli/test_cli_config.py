"""`config`: what is wrong is told line by line, and what holds with where it comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.cli_harness import Run, spawn
from vivavoce.server.settings_sources import SETTINGS


@pytest.fixture
def file(home: Path) -> Path:
    return Path("vivavoce.toml")


def test_a_right_file_is_counted(run: Run, file: Path) -> None:
    file.write_text("[server]\nport = 1234\n")
    result = run("config check", file)
    assert (result.code, result.out) == (0, b"")
    assert result.err == "the settings are right: 2 given, " + f"{len(SETTINGS) - 2} by default\n"
    assert run("config check", file, "--quiet").err == ""


def test_every_problem_is_a_line(run: Run, file: Path) -> None:
    file.write_text("[server]\nport = 99999\nprot = 1\n")
    result = run("config check", file)
    assert result.code == 2
    assert result.err.splitlines() == [
        "error: server.prot: is not a setting (vivavoce.toml); did you mean port?",
        "error: server.port: 99999 cannot be (vivavoce.toml); give a whole number in 0 … 65535",
    ]


def test_what_the_machine_lacks_is_a_problem_too(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[auth]\nkeys_file = 'keys.toml'\n")
    monkeypatch.setenv("VIVAVOCE_CONFIG", str(file))
    assert run("config check").error.startswith("error: auth.keys_file: keys.toml does not exist")
    run("keys add a --file keys.toml")
    assert run("config check").code == 0


def test_advice_is_no_problem(run: Run, file: Path) -> None:
    file.write_text("[server]\nhost = '0.0.0.0'\n")
    result = run("config check", file)
    assert result.code == 0
    assert "note: everyone who reaches 0.0.0.0" in result.err


def test_show_has_every_value_and_its_origin_but_no_password(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[server]\nport = 1234\n")
    monkeypatch.setenv("VIVAVOCE_VOICES", "redis://:secret@host/0")
    shown = run("config show", file)
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.text.splitlines()[1:]}
    assert list(rows) == list(SETTINGS)
    assert rows["server.port"] == ["1234", "vivavoce.toml"]
    assert rows["voices.place"] == ['"redis://***@host/0"', "VIVAVOCE_VOICES"]
    assert rows["server.grpc_port"] == ["unset", "default"]
    as_json = run("config show", file, "--json").text
    assert json.loads(as_json)["voices.place"] == {"value": "redis://***@host/0", "origin": "VIVAVOCE_VOICES"}
    assert "secret" not in shown.text + as_json


def test_schema_and_example_are_whole(run: Run, file: Path) -> None:
    schema = json.loads(run("config schema").text)
    assert set(schema["properties"]) == {setting.section for setting in SETTINGS.values()}
    file.write_bytes(run("config example").out)
    assert run("config check", file).code == 0


def test_without_the_servers_packages_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    for name in [name for name in sys.modules if name.startswith(("vivavoce.server.settings", "vivavoce.cli.serve"))]:
        monkeypatch.delitem(sys.modules, name)
    for command in ("config check", "config show", "config schema", "config example", "serve", "serve --help"):
        assert "pip install 'vivavoce[server]'" in run(command).error
    assert run("speak --help").code == run("--help").code == 0


def test_the_settings_need_no_torch() -> None:
    code = (
        "import sys; import vivavoce.server.settings_sources, vivavoce.server.keys; "
        "import vivavoce.cli.serve; "
        "sys.exit('torch' in sys.modules)"
    )
    assert spawn(program=("-c", code)).code == 0
