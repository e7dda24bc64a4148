"""Reads an official `cosyvoice*.yaml` (HyperPyYAML syntax) as plain data.

HyperPyYAML imports and calls the functions that tags name. This module imports and calls nothing: `!new:x.Y {a: 1}`
becomes `{"!": "new:x.Y", "a": 1}`, and only `!ref <key>` with arithmetic on numbers is evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from vivavoce.checkpoint.folder import refuse_pointer
from vivavoce.errors import CheckpointError

MAX_BYTES = 100_000
MAX_NODES = 5_000
"""Maximum number of values in a document before references are resolved, and after; a published file has 500."""
MAX_CHARS = 500
MAX_NUMBER = 1e15
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
    """A `!ref` expression; it is resolved after the whole document is read, because it may refer to a later key."""


class _PlainLoader(yaml.SafeLoader):
    """A SafeLoader that turns every tag into data, and refuses anchors, merge keys (`<<`) and huge values."""

    num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        problem = ""
        self.num_nodes += 1
        if event.anchor is not None:
            problem = "anchors and aliases are not understood"
        elif self.num_nodes > MAX_NODES:
            problem = f"more than {MAX_NODES} values, which is the limit"
        elif max(len(getattr(event, "value", "")), len(event.tag or "")) > MAX_CHARS:
            problem = f"more than {MAX_CHARS} characters in one value, which is the limit"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave a merge key `<<` as it is, so that the loader refuses it as an unknown kind of key."""


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
    """Read a document and resolve its references. Raises CheckpointError if it is invalid or larger than 100 kB."""
    refuse_pointer(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read ({error.strerror}); check the model folder") from None
    if len(raw) > MAX_BYTES:
        raise CheckpointError(
            f"{path.name}: more than {MAX_BYTES} bytes, which is the limit; this is not a CosyVoice configuration"
        )
    try:
        document = yaml.load(raw, Loader=_PlainLoader)  # _PlainLoader is a SafeLoader
    except Exception as error:  # PyYAML also raises Python's own errors, if a value does not fit its tag
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1} ({getattr(error, 'problem', '')!s:.80})" if mark else ""
        raise CheckpointError(f"{path.name}: not valid YAML{where}; download the file again") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path.name}: holds no settings; download the file again")
    try:
        return dict(_resolve(document, _Document(document), ()))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: {error}; download the file again") from None


class _Document(dict[Any, Any]):
    num_made = 0


def _resolve(value: Any, document: _Document, trail: tuple[str, ...]) -> Any:
    document.num_made += 1
    if document.num_made > MAX_NODES:
        raise ValueError(f"its references make more than {MAX_NODES} values, which is the limit")
    if isinstance(value, _Reference):
        return _evaluate(value, document, trail)
    if isinstance(value, dict):
        return {key: _resolve(item, document, trail) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, document, trail) for item in value]
    return value


def _evaluate(expression: str, document: _Document, trail: tuple[str, ...]) -> Any:
    if whole := _REFERENCE.fullmatch(expression.strip()):
        return _lookup(whole[1], document, trail)
    # Cut each value to 40 characters: a number up to MAX_NUMBER is not longer, and any other value stays invalid.
    formula = _REFERENCE.sub(lambda match: f"({_lookup(match[1], document, trail)!r:.40})", expression)
    try:
        return _arithmetic(ast.parse(formula.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ArithmeticError, MemoryError):  # MemoryError: too many brackets for the parser
        raise ValueError(f"!ref {expression!r:.80}: not arithmetic on numbers of {MAX_NUMBER:g} at most") from None


def _lookup(name: str, document: _Document, trail: tuple[str, ...]) -> Any:
    if name in trail:
        raise ValueError(f"!ref {name!r:.80} refers to itself")
    target: Any = document
    for part in name.replace("]", "").replace("[", ".").split("."):
        if not isinstance(target, dict) or part not in target:
            raise ValueError(f"!ref {name!r:.80}: this key does not exist")
        target = target[part]
    return _resolve(target, document, (*trail, name))


def _arithmetic(node: ast.expr) -> int | float:
    result: Any = None
    if isinstance(node, ast.Constant):
        result = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        result = -_arithmetic(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        result = _OPERATORS[type(node.op)](_arithmetic(node.left), _arithmetic(node.right))
    if not isinstance(result, int | float) or not abs(result) <= MAX_NUMBER:
        raise TypeError("only numbers, references and + - * / are understood")
    return result
