"""Read an official `cosyvoice*.yaml` (HyperPyYAML syntax) as plain data.

HyperPyYAML imports and calls what its tags name. Here nothing is imported or called: `!new:x.Y {a: 1}` becomes
`{"!": "new:x.Y", "a": 1}`, and only `!ref <key>` with arithmetic on numbers is worked out.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from vivavoce.errors import CheckpointError

MAX_BYTES = 1_000_000
TAG = "!"
_KINDS = ("new:", "name:", "apply:", "module:")

_REFERENCE = re.compile(r"<([^<>]+)>")
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class _Reference(str):
    """A `!ref` expression, kept until the whole document is read: it may point downwards."""


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader that turns every tag into data."""


def _tagged(loader: _PlainLoader, tag: str, node: yaml.Node) -> Any:
    if tag == "ref" and isinstance(node, yaml.ScalarNode):
        return _Reference(loader.construct_scalar(node))
    plain: dict[str, Any] = {TAG: tag if tag.startswith(_KINDS) else f"tag:{tag}"}
    if isinstance(node, yaml.MappingNode):
        plain.update({str(key): value for key, value in loader.construct_mapping(node, deep=True).items()})
    elif isinstance(node, yaml.SequenceNode):
        plain["args"] = loader.construct_sequence(node, deep=True)
    elif isinstance(node, yaml.ScalarNode) and node.value != "":
        plain["args"] = [loader.construct_scalar(node)]
    return plain


_PlainLoader.add_multi_constructor("!", _tagged)


def read_official_yaml(path: Path) -> dict[str, Any]:
    """The document of `path`, at most 1 MB, with references resolved."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read ({error.strerror}); check the model folder") from None
    if len(raw) > MAX_BYTES:
        raise CheckpointError(
            f"{path.name}: {len(raw)} bytes, the limit is {MAX_BYTES}; this is no CosyVoice configuration"
        )
    try:
        document = yaml.load(raw, Loader=_PlainLoader)  # _PlainLoader is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise CheckpointError(f"{path.name}: not valid YAML{where}; download the file again") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path.name}: holds no settings; download the file again")
    try:
        return {key: _resolve(value, document, ()) for key, value in document.items()}
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: {error.args[0] if error.args else error}") from None


def _resolve(value: Any, document: Mapping[str, Any], trail: tuple[str, ...]) -> Any:
    if isinstance(value, _Reference):
        return _evaluate(value, document, trail)
    if isinstance(value, dict):
        return {key: _resolve(item, document, trail) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, document, trail) for item in value]
    return value


def _evaluate(expression: str, document: Mapping[str, Any], trail: tuple[str, ...]) -> Any:
    if whole := _REFERENCE.fullmatch(expression.strip()):
        return _lookup(whole[1], document, trail)
    names: dict[str, Any] = {}

    def placeholder(match: re.Match[str]) -> str:
        name = f"ref_{len(names)}"
        names[name] = _lookup(match[1], document, trail)
        return name

    formula = _REFERENCE.sub(placeholder, expression)
    try:
        return _arithmetic(ast.parse(formula.strip(), mode="eval").body, names)
    except (SyntaxError, TypeError, ArithmeticError):
        raise ValueError(f"!ref {expression}: not arithmetic on numbers") from None


def _lookup(name: str, document: Mapping[str, Any], trail: tuple[str, ...]) -> Any:
    if name in trail:
        raise ValueError(f"!ref <{name}> refers to itself")
    target: Any = document
    for part in name.replace("]", "").replace("[", ".").split("."):
        if not isinstance(target, dict) or part not in target:
            raise ValueError(f"!ref <{name}>: there is no such key")
        target = target[part]
    return _resolve(target, document, (*trail, name))


def _arithmetic(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name) and isinstance(names.get(node.id), int | float):
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_arithmetic(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_arithmetic(node.left, names), _arithmetic(node.right, names))
    raise TypeError("only numbers, references and + - * / are understood")
