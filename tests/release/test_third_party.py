"""THIRD_PARTY.md has every package that pyproject.toml names, with the licence that the package itself states."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
LISTED = PAGE[PAGE.index("| package |") :].splitlines()[2:]
ROWS = {
    name: (licence, extras)
    for name, licence, extras in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", "\n".join(LISTED), re.M)
}


def test_every_package_has_its_row() -> None:
    assert len([line for line in LISTED if line.startswith("| ")]) == len(ROWS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed: dict[str, list[str]] = {}
    for extra, lines in {"always": project["dependencies"], **project["optional-dependencies"]}.items():
        for name in dict.fromkeys(Requirement(line).name for line in lines):
            if name != "vivavoce":
                needed.setdefault(name, []).append(extra)
    assert {name: extras.split(", ") for name, (_, extras) in ROWS.items()} == needed


def test_licences_are_those_that_packages_state() -> None:
    stated = 0
    for name, (licence, _) in ROWS.items():
        try:
            expression = metadata(name).get("License-Expression")
        except PackageNotFoundError:
            continue
        if expression:
            stated += 1
            assert licence == expression, f"{name}: THIRD_PARTY.md has another licence"
    assert stated >= 20


def test_what_ships_is_named() -> None:
    for place in re.findall(r"^\| [^|]+ \| `(vivavoce/[^`]+)`", PAGE, re.MULTILINE):
        assert (ROOT / "src" / place).exists(), place
    data = {path.name for path in (ROOT / "src" / "vivavoce" / "data").iterdir() if path.name != "__pycache__"}
    assert {f"`vivavoce/data/{name}`" for name in data} <= set(re.findall(r"`[^`]+`", PAGE))
