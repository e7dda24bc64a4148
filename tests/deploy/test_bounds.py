"""The oldest versions that are taken: pyproject.toml, SECURITY.md and constraints.txt agree about them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]

if sys.version_info < (3, 11):
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)


def project() -> dict[str, Any]:
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]  # type: ignore[no-any-return]


def required(python: str = "3.12") -> list[Requirement]:
    """What the package and its server need."""
    lines = [*project()["dependencies"], *project()["optional-dependencies"]["server"]]
    wanted = [Requirement(line) for line in lines]
    return [one for one in wanted if one.marker is None or one.marker.evaluate({"python_version": python})]


def test_the_bounds_that_are_explained_hold() -> None:
    table = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("| package | from |")[2]
    rows = re.findall(r"^\| ([\w, -]+) \| ([\d., ]+) \|", table, re.MULTILINE)
    told = {
        name: since
        for names, versions in rows
        for name, since in zip(names.split(", "), versions.split(", "), strict=True)
    }
    assert len(told) == 9
    floors = {one.name: [part.version for part in one.specifier if part.operator == ">="] for one in required()}
    assert {name: floors[name] for name in told} == {name: [since] for name, since in told.items()}


def pins(python: str) -> dict[str, str]:
    """Versions by name of constraints.txt, with this Python; a name is there once."""
    lines = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    here = [one for one in lines if one.marker is None or one.marker.evaluate({"python_version": python})]
    assert len({one.name.lower() for one in here}) == len(here)
    return {one.name.lower(): str(one.specifier).removeprefix("==") for one in here}


@pytest.mark.parametrize("python", ["3.10", "3.12"])
def test_the_versions_of_the_tests_are_within_the_bounds(python: str) -> None:
    versions = pins(python)
    for one in required(python):
        if one.name.lower() in versions:
            assert one.specifier.contains(versions[one.name.lower()]), one
