"""Imports go down only: cli → engine_process → server, api → frontend → engine → models → checkpoint → {rates, errors}.

Every import of the packages is read from the source, wherever it stands, and held against the rules below. A finding
names the file, the line and the rule.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "vivavoce"
MAX_LINES = 500

HEIGHT = {
    "child": 0,
    "errors": 0,
    "files": 0,
    "logs": 0,
    "loopback": 0,
    "lru_cache": 0,
    "rates": 0,
    "time_limit": 0,
    "version": 0,
    "checkpoint": 1,
    "models": 2,
    "engine": 3,
    "frontend": 4,
    "api": 5,
    "server": 5,
    "engine_process": 6,
    "cli": 7,
}
"""The rooms of the core. A room imports itself and the rooms below it; those at 0 import nothing of the package but
errors and files."""

FORWARDERS = {"bench", "compat", "evaluate", "clients", "entrypoints"}
"""Old places of documented names. No other module imports them."""

SATELLITES = {
    "vivavoce_textnorm": {"errors", "child"},
    "vivavoce_export": {"models", "checkpoint", "rates", "errors", "files", "cli", "frontend", "vivavoce_runtimes"},
    "vivavoce_kernels": set(),
    "vivavoce_runtimes": {"engine", "models", "checkpoint", "rates", "errors", "files", "child"},
    "vivavoce_bench": {*HEIGHT, "vivavoce_export", "vivavoce_runtimes", "vivavoce_triton"} - {"server"},
    "vivavoce_books": {
        *(
            "api",
            "errors",
            "files",
            "child",
            "logs",
            "cli",
            "frontend",
            "engine.request",
            "server",
            "checkpoint.folder",
        ),
        "vivavoce_textnorm",
    },
    "vivavoce_dialects": {
        "api",
        "server",
        "frontend",
        "engine.chunk_policy",
        "engine.request",
        "engine.settings",
        "models.features",
        "checkpoint",
        "errors",
        "logs",
        "version",
        "vivavoce_grpc.calls",
        "vivavoce_grpc.protos",
        "vivavoce_hub",
        "vivavoce_textnorm",
    },
    "vivavoce_hub": {"checkpoint", "cli", "errors", "files", "loopback"},
    "vivavoce_inspect": {"checkpoint", "cli", "errors", "frontend", "models.generations", "version"},
    "vivavoce_grpc": {"server", "frontend", "engine.request", "errors", "logs", "loopback"},
    "vivavoce_fleet": {
        "cli",
        "server",
        "engine_process",
        "frontend",
        "engine",
        "models.lm.text_attention",
        "checkpoint",
        "errors",
        "logs",
        "child",
        "vivavoce_hub",
        "vivavoce_textnorm",
    },
    "vivavoce_v1": {
        "engine.cost_model",
        "engine.device",
        "engine.flow_stage",
        "engine.request",
        "models",
        "checkpoint.config",
        "rates",
        "errors",
    },
    "vivavoce_triton": {
        *HEIGHT,
        "vivavoce_bench",
        "vivavoce_export",
        "vivavoce_hub",
        "vivavoce_runtimes",
        "vivavoce_textnorm",
    },
    "vivavoce_ray": {*HEIGHT, "vivavoce_dialects.table", "vivavoce_fleet", "vivavoce_textnorm"},
    "vivavoce_provenance": {"errors", "files", "version", "cli", "frontend.audio", "engine.watermark"},
    "vivavoce_training": {*HEIGHT, "vivavoce_bench", "vivavoce_runtimes"} - {"server"},
}
"""Packages beside the core, and the rooms and packages that each may import."""

CORE_TO_SATELLITE = {
    "vivavoce_textnorm": {"frontend", "server", "engine_process", "cli"},
    "vivavoce_export": {"frontend.loading"},
    "vivavoce_kernels": {"models", "engine"},
    "vivavoce_runtimes": {"engine.engine"},
    "vivavoce_bench": {"cli.voice", "frontend.model_choice"},
    "vivavoce_books": {"cli.server"},
    "vivavoce_dialects": {"cli.server"},
    "vivavoce_hub": set(),
    "vivavoce_inspect": {"cli.voice"},
    "vivavoce_grpc": {"cli.server", "server.dialect"},
    "vivavoce_fleet": {"cli.model", "cli.server", "frontend.loading", "frontend.voices.stores", "server.key_limits"},
    "vivavoce_triton": {"cli.server"},
    "vivavoce_v1": {"engine.generations", "models.generations"},
    "vivavoce_ray": set(),
    "vivavoce_provenance": set(),
    "vivavoce_training": set(),
}
"""Rooms and modules of the core that may import a package beside it. The command line may start each of them."""

FRONT_ONLY = ("vivavoce_textnorm.",)
"""Packages of which other packages import the front (`__init__.py`), and none of the modules behind it."""

STANDARD_LIBRARY_ONLY = {
    f"{PACKAGE}.engine.{name}" for name in ("scheduler", "chunk_policy", "admission", "cost_model", "request_state")
}
"""Decisions are tested in milliseconds, without tensors."""


def broken_rule(importer: str, imported: str) -> str | None:
    """The rule that the import of module `imported` in module `importer` breaks; both are of this repository."""
    source, target = importer.split("."), imported.split(".")
    if source[0] != PACKAGE:
        return _broken_in_satellite(source[0], target)
    room = ".".join(source[1:])
    if room in ("", "__main__") or _within(room, FORWARDERS):
        return None  # what users see
    if target[0] != PACKAGE:
        if imported.startswith(FRONT_ONLY):
            return f"{room} sees the front of {target[0]} only, not {imported}"
        allowed = room == "cli.main" or _within(room, CORE_TO_SATELLITE[target[0]])
        return None if allowed else f"{room} may not import {target[0]}"
    return _broken_in_core(source[1], target[1:])


def _within(module: str, rooms: set[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _broken_in_core(here: str, target: list[str]) -> str | None:
    if not target:
        return "no room imports the package's front"
    there = target[0]
    if _within(".".join(target), FORWARDERS):
        return f"{'.'.join(target)} forwards old imports only: import the module itself"
    for room in (here, there):
        if room not in HEIGHT:
            return f"{room} has no place in the layers; give it one in tests/test_layers.py"
    if here == there:
        return None
    low = HEIGHT[here] == HEIGHT[there] == 0 and there in ("errors", "files")
    return None if HEIGHT[there] < HEIGHT[here] or low else f"imports go down only: {here} → {there}"


def _broken_in_satellite(package: str, target: list[str]) -> str | None:
    if target[0] == package:
        return None
    if package not in SATELLITES:
        return f"{package} has no place in the layers; give it one in tests/test_layers.py"
    if ".".join(target).startswith(FRONT_ONLY):
        return f"{package} sees the front of {target[0]} only, not {'.'.join(target)}"
    found = ".".join(target[1:] if target[0] == PACKAGE else target)
    if not found:
        return "no package imports the core's front"
    if _within(found, SATELLITES[package]) and not _within(found, FORWARDERS):
        return None
    return f"{package} may not import {found}"


def findings(root: Path) -> Iterator[str]:
    """Every broken rule in the package under `root` as "file:line: rule"."""
    for path in sorted(root.rglob("*.py")):
        module = _module_name(path.relative_to(root))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, imported in _imports(tree, root):
            rule = _rule_for(module, imported)
            if rule:
                yield f"{path.relative_to(root)}:{line}: {rule}"


def _rule_for(module: str, imported: str) -> str | None:
    room = imported.split(".")[0]
    if not room:
        return "imports are absolute"
    if room == PACKAGE or room in SATELLITES:
        return broken_rule(module, imported)
    if module in STANDARD_LIBRARY_ONLY and room not in sys.stdlib_module_names:
        return f"{module.split('.')[-1]} uses the standard library only: {room}"
    return None


def _imports(tree: ast.AST, root: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import; a relative one gives a name that starts with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield node.lineno, inner if _is_module(inner, root) else module


def _is_module(name: str, root: Path) -> bool:
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_go_down_only() -> None:
    assert list(findings(SOURCE)) == []


def test_no_file_is_longer_than_one_idea() -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in SOURCE.rglob("*.py")}
    too_long = {str(path.relative_to(SOURCE)): lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert lengths
    assert too_long == {}, f"longer than {MAX_LINES} lines: which second idea can move out?"


NO_PLACE = "has no place in the layers; give it one in tests/test_layers.py"


@pytest.mark.parametrize(
    ("importer", "imported", "rule"),
    [
        ("vivavoce.checkpoint.folder", "vivavoce.models.build", "imports go down only: checkpoint → models"),
        ("vivavoce.engine.loop", "vivavoce.frontend.modes", "imports go down only: engine → frontend"),
        ("vivavoce.frontend.modes", "vivavoce.api", "imports go down only: frontend → api"),
        (
            "vivavoce.server.dispatcher",
            "vivavoce.engine_process.client",
            "imports go down only: server → engine_process",
        ),
        ("vivavoce.server.http.app", "vivavoce.api", "imports go down only: server → api"),
        ("vivavoce.rates", "vivavoce.logs", "imports go down only: rates → logs"),
        ("vivavoce.errors", "vivavoce.rates", "imports go down only: errors → rates"),
        (
            "vivavoce.engine.stages",
            "vivavoce_export.onnx",
            "engine.stages may not import vivavoce_export",
        ),
        ("vivavoce.frontend.session", "vivavoce_bench.load", "frontend.session may not import vivavoce_bench"),
        ("vivavoce.engine.loop", "vivavoce_training", "engine.loop may not import vivavoce_training"),
        ("vivavoce_export.onnx", "vivavoce.engine.loop", "vivavoce_export may not import engine.loop"),
        (
            "vivavoce.frontend.speech",
            "vivavoce_textnorm.reader",
            "frontend.speech sees the front of vivavoce_textnorm only, not vivavoce_textnorm.reader",
        ),
        ("vivavoce_textnorm.reader", "vivavoce.server.http.app", "vivavoce_textnorm may not import server.http.app"),
        ("vivavoce_bench.load", "vivavoce.evaluate", "vivavoce_bench may not import evaluate"),
        (
            "vivavoce.server.http.app",
            "vivavoce_dialects.elevenlabs",
            "server.http.app may not import vivavoce_dialects",
        ),
        ("vivavoce.cli.bench", "vivavoce.bench", "bench forwards old imports only: import the module itself"),
        ("vivavoce.utils", "vivavoce.errors", f"utils {NO_PLACE}"),
        (
            "vivavoce.cli.main",
            "vivavoce.utils",
            f"utils {NO_PLACE}",
        ),
        (
            "vivavoce_more.x",
            "vivavoce.errors",
            f"vivavoce_more {NO_PLACE}",
        ),
        (
            "vivavoce.server.utterance",
            "vivavoce.clients.grpc",
            "clients.grpc forwards old imports only: import the module itself",
        ),
    ],
)
def test_forbidden(importer: str, imported: str, rule: str) -> None:
    assert broken_rule(importer, imported) == rule


def test_the_front_is_free_and_nobody_imports_it() -> None:
    assert broken_rule("vivavoce", "vivavoce.api") is None
    assert broken_rule("vivavoce.__main__", "vivavoce.cli.main") is None
    assert broken_rule("vivavoce.bench", "vivavoce_bench") is None
    assert broken_rule("vivavoce.frontend.speech", "vivavoce_textnorm") is None
    assert broken_rule("vivavoce.cli.main", "vivavoce_training.commands") is None
    assert broken_rule("vivavoce.frontend.modes", "vivavoce") == "no room imports the package's front"


def test_a_finding_names_file_line_and_rule(tmp_path: Path) -> None:
    engine = tmp_path / "vivavoce" / "engine"
    engine.mkdir(parents=True)
    (tmp_path / "vivavoce" / "__init__.py").write_text("from vivavoce.api import load\n")
    (tmp_path / "vivavoce" / "api.py").write_text("")
    (engine / "__init__.py").write_text("")
    (engine / "loop.py").write_text("import os\n\ndef f():\n    from vivavoce import api\n")
    (engine / "request_state.py").write_text(
        "import json\nimport torch.nn\nfrom . import loop\nfrom vivavoce import load\n"
    )
    (engine / "device.py").write_text("import vivavoce_training\n")
    assert list(findings(tmp_path)) == [
        "vivavoce/engine/device.py:1: engine.device may not import vivavoce_training",
        "vivavoce/engine/loop.py:4: imports go down only: engine → api",
        "vivavoce/engine/request_state.py:2: request_state uses the standard library only: torch",
        "vivavoce/engine/request_state.py:3: imports are absolute",
        "vivavoce/engine/request_state.py:4: no room imports the package's front",
    ]
