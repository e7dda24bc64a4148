"""The boundary: startup, help, exit codes, and one line for every failure."""

from __future__ import annotations

import logging
import sys
import warnings

import pytest

import vivavoce
from tests.cli.cli_harness import Run, spawn
from vivavoce.cli import console
from vivavoce.cli import main as cli
from vivavoce.cli.console import one_line
from vivavoce.errors import VoiceNotFound

COMMANDS = (
    "speak",
    "read",
    "convert",
    "bench",
    "voice",
    *(f"voice {name}" for name in ("add", "list", "show", "remove", "import", "export")),
    "download",
    "info",
    "eval",
    "doctor",
)
COMPLETING = """import os
os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
from vivavoce.cli.main import main
raise SystemExit(main())"""
HEAVY = ("torch", "numpy", "onnxruntime", "httpx", "rich", "safetensors", "tokenizers", "av", "wetext")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `vivavoce info` fail with that error."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("vivavoce.frontend.model_choice.model_folder", fail)


def test_starting_imports_nothing_heavy() -> None:
    listing = "import sys; from vivavoce.cli.main import main; main(['--help']); print('modules:', *sys.modules)"
    loaded = spawn(program=("-c", listing)).text.split("modules:")[1].split()
    assert "typer" in loaded
    assert not set(HEAVY) & set(loaded)
    assert not [name for name in loaded if name.startswith("vivavoce_")]


def test_words_that_people_type_first_answer(run: Run) -> None:
    assert run("version").text == run("--version").text == f"vivavoce {vivavoce.__version__}\n"
    assert run("help").text == run("--help").text
    assert run("help speak").text == run("speak --help").text


def test_progress_is_told_now_and_then_where_no_terminal_shows_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([0.0, 1.0, 11.0, 12.0, 30.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(moments))
    with console.progress(console.Reporter()) as show:
        for done in (0, 3, 5, 9):
            show("speaking", done, 10, "")
    assert capsys.readouterr().err == "speaking: 30%\nspeaking: 90%\n"


def test_the_module_runs_as_a_program() -> None:
    result = spawn("--version")
    assert (result.code, result.text, result.err) == (0, f"vivavoce {vivavoce.__version__}\n", "")


def test_alone_it_prints_its_help(run: Run) -> None:
    assert run().out == run("--help").out
    assert run().code == 0
    assert run("voice").out == run("voice -h").out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_parses(run: Run, command: str) -> None:
    text = run(f"{command} --help").text
    assert "Example" in text
    assert f"vivavoce {command}" in text.split("Example")[1]
    assert all(len(line) < 100 for line in text.splitlines())


@pytest.mark.parametrize(
    ("words", "expected"),
    [("vivavoce sp", "speak"), ("vivavoce speak --tra", "--transcript"), ("vivavoce train pre", "prepare")],
)
def test_a_shell_learns_what_a_line_may_go_on_with(words: str, expected: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_VIVAVOCE_COMPLETE": "complete_bash"}
    code = f"import os; os.environ.update({asked!r}); {COMPLETING}"
    assert spawn(program=("-c", code)).text.split() == [expected]


def test_a_shell_is_given_its_script() -> None:
    script = spawn("--show-completion", "bash", program=("-c", COMPLETING))
    assert "_VIVAVOCE_COMPLETE=complete_bash" in script.text


def test_the_help_calls_arguments_by_their_names(run: Run) -> None:
    text = run("voice export --help").text
    assert text.startswith("Usage: vivavoce voice export [OPTIONS] NAME...\n")
    assert "  NAME  The voices' names." in text
    assert run("speak --help").text.startswith("Usage: vivavoce speak [OPTIONS] [TEXT]\n")
    listed = run("--help").text.split("Commands:")[1]
    assert listed.index("  speak ") < listed.index("  serve ") < listed.index("  eval ")


def test_help_shows_defaults(run: Run) -> None:
    text = " ".join(run("speak --help").text.split())
    for default in ("[default: out.wav]", "[default: 1.0]", "[default: 0]", "[default: auto]"):
        assert default in text
    assert "VIVAVOCE_VOICES" in text
    assert "overwritten" in text


@pytest.mark.parametrize(
    "line",
    [
        *("spaek", "speak hi --nope", "speak hi there", "speak hi --seed many", "speak hi --speed"),
        *("convert", "voice nope", "voice export"),
    ],
)
def test_usage_errors_are_one_line(run: Run, line: str) -> None:
    result = run(line)
    assert result.code == 2
    assert result.out == b""
    (told,) = result.err.splitlines()
    assert told.startswith("error: ")
    assert "; try `vivavoce" in told
    assert told.endswith("--help`")


@pytest.mark.parametrize("text", ["-5 degrees", "- [ ] todo", "-- hm"])
def test_a_text_that_begins_with_a_dash_is_recognised(run: Run, text: str) -> None:
    result = run("normalize", text)
    assert result.code == 2
    assert "; put -- before a text that begins with a dash; try `vivavoce normalize --help`" in result.err


def test_a_text_without_quotes_is_recognised(run: Run) -> None:
    assert "(there); put the text in quotes; try `" in run("speak hi there").err
    assert "quotes" not in run("info hi there").err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            VoiceNotFound("voice: 'x'\nis \x1b[31m not there; add it"),
            2,
            "error: voice: 'x' is �[31m not there; add it\n",
        ),
        (
            ZeroDivisionError("by\nzero"),
            1,
            "internal error: ZeroDivisionError: by zero (run with VIVAVOCE_DEBUG=1 for ",
        ),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (ModuleNotFoundError("no", name="onnxruntime"), 2, "error: the package onnxruntime is missing"),
        (PermissionError(13, "Permission denied", "/some/place"), 2, "error: /some/place: Permission denied"),
    ],
)
def test_every_failure_is_one_line_and_a_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    failing(monkeypatch, error)
    result = run("info")
    assert result.code == code
    assert result.err.startswith(said)
    assert result.err.count("\n") == bool(said)


def test_with_stderr_closed_no_message_goes_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["speak", "--file", "absent.txt"]) == 2
    sys.stderr.close()
    assert capsys.readouterr().out == ""


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, ZeroDivisionError("by zero"))
    monkeypatch.setenv("VIVAVOCE_DEBUG", "1")
    assert cli.main(["info"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("internal error: ZeroDivisionError: by zero\n")


def test_libraries_are_quiet_and_our_warnings_are_notes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def chatter(_: object) -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.getLogger("some.library").warning("chatter")
        logging.getLogger("vivavoce.checkpoint").warning("waiting")
        logging.getLogger("vivavoce.api").warning("resting")
        logging.getLogger("vivavoce.untrained").warning("said elsewhere")
        raise VoiceNotFound("voice: gone; add it")

    monkeypatch.setattr("vivavoce.frontend.model_choice.model_folder", chatter)
    assert run("info").err == "note: waiting\nnote: resting\nerror: voice: gone; add it\n"
    assert logging.getLogger("vivavoce").handlers == []


def test_one_line_keeps_text_and_drops_steering() -> None:
    assert one_line(" 你好,\n\tworld \x1b[2J\x07 ") == "你好, world �[2J�"
