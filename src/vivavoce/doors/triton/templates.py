"""Templates are filled strictly: a variable that is unknown or that nobody gave is an error that names it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from string import Template

from vivavoce.doors.triton.variables import VARIABLES
from vivavoce.errors import InvalidRequest

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def fill_template(text: str, values: Mapping[str, str], *, name: str = "template") -> str:
    """`text` with every `${variable}` replaced by its value, or by its default.

    One set of values fills many templates: a known variable that does not occur is no error.

    Args:
        text: a template; `$$` stands for a dollar sign.
        values: by variable, as they are typed.
        name: what messages call the template.

    Raises:
        InvalidRequest: a variable that nobody knows, in the template or in `values`; one without a default that is
            not given; a value that cannot be; a dollar sign that begins no variable.
    """
    filled = check_values(values)
    wanted = _variables_of(text, name)
    _refuse_unknown(wanted, name)
    missing = [variable for variable in wanted if variable not in filled and VARIABLES[variable].default is None]
    if missing:
        raise InvalidRequest(f"{name}: no value for {', '.join(missing)}; add {missing[0]}=VALUE")
    defaults = {variable: VARIABLES[variable].default or "" for variable in wanted}
    return Template(text).substitute(defaults | filled)


def check_values(values: Mapping[str, str]) -> dict[str, str]:
    """The values as they stand in a filled file.

    Raises:
        InvalidRequest: an unknown variable, or a value that cannot be.
    """
    _refuse_unknown(values, "values")
    return {name: VARIABLES[name].checked(value) for name, value in values.items()}


def parse_values(arguments: Iterable[str]) -> dict[str, str]:
    """Values as they are typed: `key=value`, whose value may hold anything, or `key:value,key:value`.

    Raises:
        InvalidRequest: an argument is neither, or a variable is given twice with different values.
    """
    values: dict[str, str] = {}
    for argument in arguments:
        for key, value in _pairs(argument):
            if values.setdefault(key, value) != value:
                raise InvalidRequest(f"{key}: given as {values[key]!r} and as {value!r}; give it once")
    return values


def _pairs(argument: str) -> Iterable[tuple[str, str]]:
    if _ASSIGNMENT.match(argument):
        key, _, value = argument.partition("=")
        yield key, value
        return
    for piece in argument.split(","):
        key, colon, value = piece.partition(":")
        if not colon or not key.strip():
            raise InvalidRequest(
                f"values: {piece!r} is no key:value; write key=value, one an argument, if a value holds ':' or ','"
            )
        yield key.strip(), value


def _variables_of(text: str, name: str) -> list[str]:
    """The variables of a template in the order of their first use."""
    found: dict[str, None] = {}
    for match in Template.pattern.finditer(text):
        if match.group("invalid") is not None:
            line = text.count("\n", 0, match.start()) + 1
            raise InvalidRequest(f"{name}: line {line}: a dollar sign begins no variable; write ${{name}}, or $$")
        variable = match.group("named") or match.group("braced")
        if variable:
            found[variable] = None
    return list(found)


def _refuse_unknown(names: Iterable[str], where: str) -> None:
    unknown = [name for name in names if name not in VARIABLES]
    if unknown:
        noun = "is no variable" if len(unknown) == 1 else "are no variables"
        raise InvalidRequest(f"{where}: {', '.join(unknown)} {noun}; known are {', '.join(sorted(VARIABLES))}")
