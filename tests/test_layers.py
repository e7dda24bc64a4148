"""Imports go down only: entrypoints → service → engine → models → checkpoint → {rates, errors}.

Every import in the package is read from the source, wherever it stands, and held against the rules below. A finding
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
TRAINING = "vivavoce_training"
"""A package beside it."""
MAX_LINES = 500

HEIGHT = {
    "child": 0,
    "errors": 0,
    "files": 0,
    "lru_cache": 0,
    "protos": 0,
    "rates": 0,
    "version": 0,
    "checkpoint": 1,
    "models": 2,
    "engine": 3,
    "service": 4,
    "entrypoints": 5,
    "compat": 6,
}
"""The stack. A room imports itself and what is lower; errors and rates import nothing of the package."""

BESIDE = {
    "export": {"models", "checkpoint", "rates", "errors", "files"},
    "measure": {"errors"},
    "evaluate": {"entrypoints.python", "clients", "measure", "rates", "errors", "child"},
    "clients": {"measure", "protos", "rates", "errors"},
    "bench": {"evaluate", "measure", "rates", "errors"},
}
"""Rooms beside the stack and what they may see; of the stack only entrypoints may see them."""

MAY_EXPORT = "service.merged_folder"
"""The one room of the stack below that may see export: it makes what another runtime loads."""

BETWEEN_ENTRYPOINTS = {("cli", name) for name in ("upstream", "grpc", "http", "python", "triton", "wyoming")} | {
    ("ray", "http")
}
"""Who may use another door: the command line speaks through the Python interface, and sets up the servers; Ray Serve
serves the same app as they do."""

STANDARD_LIBRARY_ONLY = {
    f"{PACKAGE}.engine.{name}" for name in ("scheduler", "chunk_policy", "admission", "cost_model", "request_state")
}
"""Decisions are tested in milliseconds, without tensors."""


def broken_rule(importer: str, imported: str) -> str | None:
    """The rule that the import of module `imported` in module `importer` breaks; both are of the package."""
    source, target = importer.split(".")[1:], imported.split(".")[1:]
    if not source or source == ["__main__"]:
        return None  # the package's front: what users see
    if not target:
        return "no room imports the package's front"
    return _broken_in_stack(source, target) if source[0] in HEIGHT else _broken_beside(source, target)


def _broken_in_stack(source: list[str], target: list[str]) -> str | None:
    here, there = source[0], target[0]
    if there in BESIDE:
        allowed = here == "entrypoints" or (there == "export" and ".".join(source) == MAY_EXPORT)
        return None if allowed else f"{here} may not see {there}: only entrypoints may"
    if there not in HEIGHT:
        return f"{there} has no place in the layers; give it one in tests/test_layers.py"
    if here == there == "entrypoints" and len(source) > 1 and len(target) > 1:
        same = source[1] == target[1] or (source[1], target[1]) in BETWEEN_ENTRYPOINTS
        return None if same else f"entrypoints may not use one another: {source[1]} → {target[1]}"
    if here == there and HEIGHT[here] > 0:
        return None
    return None if HEIGHT[there] < HEIGHT[here] else f"imports go down only: {here} → {there}"


def _broken_beside(source: list[str], target: list[str]) -> str | None:
    here = source[0]
    if here not in BESIDE:
        return f"{here} has no place in the layers; give it one in tests/test_layers.py"
    if target[0] == here or BESIDE[here] & {target[0], ".".join(target[:2])}:
        return None
    return f"{here} may see {', '.join(sorted(BESIDE[here]))} only"


def findings(root: Path) -> Iterator[str]:
    """Every broken rule in the package under `root` as "file:line: rule"."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
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
    if room == PACKAGE:
        return broken_rule(module, imported)
    if room == TRAINING and module != f"{PACKAGE}.entrypoints.cli.main":
        return "only the command line may start the training"
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


@pytest.mark.parametrize(
    ("importer", "imported", "rule"),
    [
        ("checkpoint.folder", "models.build", "imports go down only: checkpoint → models"),
        ("engine.loop", "service.modes", "imports go down only: engine → service"),
        ("service.modes", "entrypoints.python", "imports go down only: service → entrypoints"),
        ("rates", "errors", "imports go down only: rates → errors"),
        ("errors", "rates", "imports go down only: errors → rates"),
        ("entrypoints.http.app", "entrypoints.cli.main", "entrypoints may not use one another: http → cli"),
        ("entrypoints.python", "entrypoints.cli", "entrypoints may not use one another: python → cli"),
        ("engine.backends.onnx_flow", "export.onnx", "engine may not see export: only entrypoints may"),
        ("export.onnx", "engine.loop", "export may see checkpoint, errors, files, models, rates only"),
        (
            "evaluate.wer",
            "entrypoints.http.app",
            "evaluate may see child, clients, entrypoints.python, errors, measure, rates only",
        ),
        ("bench.load", "service.modes", "bench may see errors, evaluate, measure, rates only"),
        ("utils", "errors", "utils has no place in the layers; give it one in tests/test_layers.py"),
        ("service.modes", "utils", "utils has no place in the layers; give it one in tests/test_layers.py"),
    ],
)
def test_forbidden(importer: str, imported: str, rule: str) -> None:
    assert broken_rule(f"vivavoce.{importer}", f"vivavoce.{imported}") == rule


def test_the_front_is_free_and_nobody_imports_it() -> None:
    assert broken_rule("vivavoce", "vivavoce.api") is None
    assert broken_rule("vivavoce.__main__", "vivavoce.cli.main") is None
    assert broken_rule("vivavoce.frontend.modes", "vivavoce") == "no room imports the package's front"


def test_a_finding_names_file_line_and_rule(tmp_path: Path) -> None:
    engine, entrypoints = tmp_path / "vivavoce" / "engine", tmp_path / "vivavoce" / "entrypoints"
    engine.mkdir(parents=True)
    entrypoints.mkdir()
    (tmp_path / "vivavoce" / "__init__.py").write_text("from vivavoce.entrypoints import python\n")
    (entrypoints / "python.py").write_text("")
    (engine / "__init__.py").write_text("")
    (engine / "loop.py").write_text("import os\n\ndef f():\n    from vivavoce.entrypoints import python\n")
    (engine / "request_state.py").write_text(
        "import json\nimport torch.nn\nfrom . import loop\nfrom vivavoce import load\n"
    )
    (engine / "graphs.py").write_text("import vivavoce_training\n")
    assert list(findings(tmp_path)) == [
        "vivavoce/engine/graphs.py:1: only the command line may start the training",
        "vivavoce/engine/loop.py:4: imports go down only: engine → entrypoints",
        "vivavoce/engine/request_state.py:2: request_state uses the standard library only: torch",
        "vivavoce/engine/request_state.py:3: imports are absolute",
        "vivavoce/engine/request_state.py:4: no room imports the package's front",
    ]
