"""`vivavoce serve`: speech for programs and people, over HTTP, WebSockets and gRPC."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vivavoce.cli.config import needs_server
from vivavoce.cli.console import Reporter
from vivavoce.cli.flags import QuietOption, flag

with needs_server():
    from vivavoce.server.settings import ServerSettings
    from vivavoce.server.settings_sources import SETTINGS, Setting, resolve_settings

EXAMPLES = (
    "vivavoce serve                                          # then open http://127.0.0.1:8880",
    "vivavoce serve --model CosyVoice2-0.5B --host 0.0.0.0 --keys keys.toml",
    "vivavoce serve --legacy --grpc-port 50001               # CosyVoice's own services, too",
    "vivavoce serve --upstream triton://localhost:8001 --reference-dir voices/",
    "vivavoce serve --model CosyVoice2-0.5B --model mine=CosyVoice2-0.5B+/srv/mine/llm.pt",
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
_FLAGS = {setting.flag[2:].replace("-", "_"): setting for setting in SETTINGS.values() if setting.flag}


def _option(setting: Setting) -> tuple[Any, Any]:
    declaration, _, text = setting.flag_spec.partition(": ")
    names = [word for word in declaration.split() if word.startswith("-")]
    kind, usual = _TYPES["path" if setting.kind.get("format") == "path" else setting.kind["type"]]
    metavar = next((word for word in declaration.split() if not word.startswith("-")), usual)
    if kind is bool:
        names = [f"{names[0]}/--no-{names[0][2:]}"]
    elif isinstance(setting.default, (str, int, float)) and "[default:" not in text:
        text += f"  [default: {setting.default if kind is str else format(setting.default, 'g')}]"
    return kind | None, flag(text, metavar, *names)


if TYPE_CHECKING:
    ServerFlags = Any
else:
    ServerFlags = make_dataclass("ServerFlags", [(name, *_option(setting)) for name, setting in _FLAGS.items()])


def serve(
    *,
    config: Path | None = flag("A TOML file of settings; `vivavoce config example` prints one.", "FILE", "-c"),
    given: ServerFlags,
    quiet: QuietOption = False,
) -> None:
    """Serve speech over HTTP, WebSockets and gRPC, with OpenAI's routes and a web page.

    A flag wins over an environment variable (VIVAVOCE_SERVER_PORT …), which wins over the file of --config.
    `vivavoce config show` prints the result.
    """
    with needs_server():
        from vivavoce.cli.server import run_server

    def read() -> ServerSettings:
        return resolve_settings(config, os.environ, flag_values(vars(given))).settings

    run = asyncio.run
    if sys.platform != "win32":
        from uvloop import run
    run(run_server(read, Reporter(quiet)))


def flag_values(parameters: Mapping[str, object]) -> dict[str, object]:
    """Return the settings' values by name. The first --model is the default model; the others are further models."""
    values = {setting.name: parameters[name] for name, setting in _FLAGS.items()}
    models = cast(list[str], values["models.more"] or [])
    return {**values, "model.model": models[0] if models else None, "models.more": models[1:]}
