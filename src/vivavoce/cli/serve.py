"""`vivavoce serve`: speech for programs and people, over HTTP, WebSockets and gRPC."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import make_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from vivavoce.cli.config import needs_server
from vivavoce.cli.console import Reporter
from vivavoce.cli.flags import QuietOption, flag, with_flags

if TYPE_CHECKING:
    from vivavoce.server.settings_sources import Setting

EXAMPLES = (
    "vivavoce serve                                          # then open http://127.0.0.1:8880",
    "vivavoce serve --model CosyVoice2-0.5B --host 0.0.0.0 --keys keys.toml",
    "vivavoce serve --legacy --grpc-port 50001               # CosyVoice's own services, too",
    "vivavoce serve --upstream triton://localhost:8001 --reference-dir voices/",
    "vivavoce serve --config vivavoce.toml",
)
_TYPES: Mapping[str, tuple[Any, str | None]] = {
    "integer": (int, "NUMBER"),
    "number": (float, "NUMBER"),
    "boolean": (bool, None),
    "array": (list[str], "NAME"),
    "object": (list[str], "NAME=VALUE"),
    "string": (str, "NAME"),
    "path": (Path, "FILE"),
}
"""For each kind of setting: the type of its option, and the name of its value in the help."""


def serve() -> None:
    """Serve speech to programs and people: OpenAI's routes with true streaming, WebSockets, a web page.

    Settings come from flags, then variables (VIVAVOCE_SERVER_PORT …), then --config; `vivavoce config` explains.
    """


class ServeCommand(TyperCommand):
    """`serve`. Its options are made from the settings on first use, so that other commands do not import pydantic."""

    @cached_property
    def _built(self) -> TyperCommand:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(_command())
        built = typer.main.get_command(app)
        assert isinstance(built, TyperCommand)
        return built

    @property
    def params(self) -> list[Any]:
        return self._built.params

    @params.setter
    def params(self, _: object) -> None:
        """Ignored: `TyperCommand` sets the options of `serve()`, which has none."""

    def invoke(self, ctx: Any) -> Any:
        return self._built.invoke(ctx)


def _command() -> Any:
    """The command's function, with the parameters --config, a flag for each setting that has one, and --quiet."""

    def run(
        *,
        config: Path | None = flag("A TOML file of settings; `vivavoce config example` prints one.", "FILE", "-c"),
        given: Any,
        quiet: QuietOption = False,
    ) -> None:
        with needs_server():
            from vivavoce.cli.server import run_server
            from vivavoce.server.settings_sources import resolve_settings
        settings = resolve_settings(config, os.environ, flag_values(vars(given))).settings
        asyncio.run(run_server(settings, Reporter(quiet)))

    options = [(name, *_option(setting)) for name, setting in _flags().items()]
    run.__annotations__["given"] = make_dataclass("ServerFlags", options)
    return with_flags(run)


def flag_values(parameters: Mapping[str, object]) -> dict[str, object]:
    """The flags among the parameters of a command (`typer.Context.params`), by setting."""
    return {setting.name: parameters[name] for name, setting in _flags().items()}


def _flags() -> dict[str, Setting]:
    """The settings with flags, by the name of the command's parameter."""
    with needs_server():
        from vivavoce.server.settings_sources import SETTINGS
    return {setting.flag[2:].replace("-", "_"): setting for setting in SETTINGS.values() if setting.flag}


def _option(setting: Setting) -> tuple[Any, Any]:
    """Type and option of a setting; its default is None, so that file and environment apply."""
    declaration, _, text = setting.flag_spec.partition(": ")
    names = [word for word in declaration.split() if word.startswith("-")]
    kind, usual = _TYPES["path" if setting.kind.get("format") == "path" else setting.kind["type"]]
    metavar = next((word for word in declaration.split() if not word.startswith("-")), usual)
    if kind is bool:
        names = [f"{names[0]}/--no-{names[0][2:]}"]
    elif isinstance(setting.default, (str, int, float)) and "[default:" not in text:
        text += f"  [default: {setting.default if kind is str else format(setting.default, 'g')}]"
    return kind | None, flag(text, metavar, *names)
