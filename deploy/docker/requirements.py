"""Prints what pyproject.toml (in the working folder) requires with the named extras, a line each."""

from __future__ import annotations

import sys
from pathlib import Path

import tomllib

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
for extra in sys.argv[1:]:
    project["dependencies"] += project["optional-dependencies"][extra]
print("\n".join(project["dependencies"]))
