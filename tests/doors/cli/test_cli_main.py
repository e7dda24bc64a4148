"""The boundary: startup, help, exit codes, and one line for every failure."""

from __future__ import annotations

import logging
import warnings

import pytest
from cli_harness import Run, spawn

import vivavoce
from vivavoce.doors.cli import main as cli
from vivavoce.doors.cli.console import one_line, size_text
from vivavoce.errors import VoiceNotFound
from vivavoce.service.text.checks import MAX_TEXT_CHARS

COMMANDS = (
    "speak",
    "convert",
    "bench",
    "voice",
    *(f"voice {name}" for name in ("add", "list", "show", "remove", "import", "export")),
    "download",
    "info",
    "eval",
    "doctor",
)
HEAVY = ("torch", "numpy", "onnxruntime", "httpx", "rich", "safetensors", "tokenizers", "av", "wetext")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `vivavoce info` fail with that error."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("vivavoce.service.default_model.model_folder", fail)


def test_starting_imports_nothing_heavy() -> None:
    listing = "import sys, vivavoce.doors.cli.main; print(*sys.modules)"
    loaded = spawn(program=("-c", listing)).text.split()
    assert "typer" in loaded
    assert not set(HEAVY) & set(loaded)


def test_the_module_runs_as_a_program() -> None:
    result = spawn("--version")
    assert (result.code, result.text, result.err) == (0, f"vivavoce {vivavoce.__version__}\n", "")


def test_alone_it_prints_its_help(run: Run) -> None:
    assert run().out == run("--help").out
    assert run().code == 0
    assert run("voice").out == run("voice", "-h").out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_parses(run: Run, command: str) -> None:
    text = run(*command.split(), "--help").text
    assert "Example" in text
    assert f"vivavoce {command}" in text.split("Example")[1]
    assert all(len(line) < 100 for line in text.splitlines())


def test_help_shows_defaults(run: Run) -> None:
    text = " ".join(run("speak", "--help").text.split())
    for default in ("[default: out.wav]", "[default: 1.0]", "[default: 0]", "[default: auto]"):
        assert default in text
    assert "VIVAVOCE_VOICES" in text
    assert "overwritten" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("spaek",),
        ("speak", "hi", "--nope"),
        ("speak", "hi", "there"),
        ("speak", "hi", "--seed", "many"),
        ("speak", "hi", "--speed"),
        ("convert",),
        ("voice", "nope"),
        ("voice", "export"),
    ],
)
def test_usage_errors_are_two_lines(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert result.out == b""
    first, second = result.err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("try `vivavoce")
    assert second.endswith("--help`")


def test_a_text_without_quotes_is_recognised(run: Run) -> None:
    assert run("speak", "hi", "there").err.splitlines()[0].endswith("(there); put the text in quotes")
    assert "quotes" not in run("info", "hi", "there").err


def test_help_of_speak_tells_the_limit(run: Run) -> None:
    assert f"up to {MAX_TEXT_CHARS:,} characters" in run("speak", "--help").text


@pytest.mark.parametrize("command", ["speak", "convert", "voice add", "info", "doctor"])
def test_help_names_the_variable_of_the_model(run: Run, command: str) -> None:
    assert "VIVAVOCE_MODEL" in run(*command.split(), "--help").text


def test_a_mistyped_command_is_recognised(run: Run) -> None:
    assert "speak" in run("spaek").err


def test_errors_of_vivavoce_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, VoiceNotFound("voice: 'x'\nis \x1b[31m not there; add it"))
    assert run("info").error == "error: voice: 'x' is �[31m not there; add it\n"


def test_other_errors_are_internal_and_hide_their_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ZeroDivisionError("by\nzero"))
    result = run("info")
    assert result.code == 1
    assert result.err == ("internal error: ZeroDivisionError: by zero (run with VIVAVOCE_DEBUG=1 for the traceback)\n")


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, ZeroDivisionError("by zero"))
    monkeypatch.setenv("VIVAVOCE_DEBUG", "1")
    assert cli.main(["info"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("internal error: ZeroDivisionError: by zero\n")


def test_interruption_is_130_without_a_word(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    result = run("info")
    assert (result.code, result.err) == (130, "")


def test_a_reader_that_left_is_141_without_a_word(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, BrokenPipeError())
    result = run("info")
    assert (result.code, result.err) == (141, "")


def test_a_missing_package_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime"))
    assert "onnxruntime is missing" in run("info").error


def test_a_system_error_names_the_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, PermissionError(13, "Permission denied", "/some/place"))
    assert "/some/place: Permission denied" in run("info").error


def test_libraries_are_quiet_and_our_warnings_are_notes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def chatter(_: object) -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.getLogger("some.library").warning("chatter")
        logging.getLogger("vivavoce.checkpoint").warning("waiting")
        logging.getLogger("vivavoce.doors.python").warning("resting")
        logging.getLogger("vivavoce.untrained").warning("said elsewhere")
        raise VoiceNotFound("voice: gone; add it")

    monkeypatch.setattr("vivavoce.service.default_model.model_folder", chatter)
    assert run("info").err == "note: waiting\nnote: resting\nerror: voice: gone; add it\n"
    assert logging.getLogger("vivavoce").handlers == []


def test_one_line_keeps_text_and_drops_steering() -> None:
    assert one_line(" 你好,\n\tworld \x1b[2J\x07 ") == "你好, world �[2J�"


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2_023_000_000, "2.02 GB")]
)
def test_sizes_as_people_write_them(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text
