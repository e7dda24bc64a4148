"""The flags of `serve`: each sets the setting that says so, and one that is not given sets nothing."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest
import typer

from vivavoce.doors.cli import serve_options
from vivavoce.service.operations.settings_fields import SETTINGS
from vivavoce.service.operations.settings_resolve import resolve_settings

OPTIONS = {
    "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name.removesuffix("Option")).lstrip(
        "_"
    ): kind
    for name, kind in vars(serve_options).items()
    if name.endswith("Option")
}


def spellings(parameter: str) -> list[str]:
    """All that an option may be written as, without what switches it off."""
    option = get_args(OPTIONS[parameter])[1]
    return [declared.partition("/")[0] for declared in (option.default, *option.param_decls)]


def parsed(*arguments: str) -> dict[str, object]:
    """The flags' layer of a command that has every option."""
    taken: dict[str, object] = {}

    def command(context: typer.Context, **_: Any) -> None:
        taken.update(serve_options.flags_layer(context.params))

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in OPTIONS.items()
    ]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {"context": typer.Context, **OPTIONS}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    app(list(arguments), standalone_mode=False)
    return taken


def test_every_flag_of_a_setting_is_an_option_and_the_reverse() -> None:
    flags = {setting.flag: name for name, setting in SETTINGS.items() if setting.flag}
    assert {flags[spellings(parameter)[0]]: parameter for parameter in OPTIONS if parameter != "config"} == {
        setting: parameter for parameter, setting in serve_options.SETTING_OF.items()
    }


def test_nothing_given_sets_nothing() -> None:
    assert not any(parsed().values())
    assert set(resolve_settings(None, {}, parsed()).origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("arguments", "setting", "value"),
    [
        (["--port", "0"], "server.port", 0),
        (["--legacy"], "server.legacy", True),
        (["--no-web-page"], "server.web_page", False),
        (["--model-dir", "x"], "model.model", "x"),
        (["--cors-origin", "https://a.org", "--cors-origin", "*"], "server.cors_origins", ("https://a.org", "*")),
        (["--allowed-host", "TTS.example.org"], "server.allowed_hosts", ("tts.example.org",)),
        (["--memory", "8"], "model.memory_gb", 8.0),
        (["--drain", "0"], "server.drain_s", 0.0),
        (["--log-format", "json"], "logging.format", "json"),
    ],
)
def test_a_flag_sets_its_setting(arguments: list[str], setting: str, value: object) -> None:
    resolved = resolve_settings(None, {}, parsed(*arguments))
    assert resolved.value(setting) == value
    assert [name for name, origin in resolved.origins.items() if origin != "default"] == [setting]


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(Exception, match=r"'maybe' cannot be \(flag --admission\)"):
        resolve_settings(None, {}, parsed("--admission", "maybe"))
