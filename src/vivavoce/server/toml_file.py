"""Reads the TOML files that an operator writes; error messages have one line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vivavoce.errors import InvalidRequest, MissingDependency


def read_toml(path: Path, field: str) -> dict[str, Any]:
    """Return a file's values. InvalidRequest: missing, unreadable or malformed file. field: the file's setting."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidRequest(f"{field}: {path} does not exist; make it, or name another file") from None
    except OSError as error:
        raise InvalidRequest(f"{field}: {path} cannot be read ({error.strerror}); check the file") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field}: {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the values in TOML text. InvalidRequest: the text is malformed; the message has the line."""
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ModuleNotFoundError:
        raise MissingDependency(
            "TOML files: Python 3.10 needs the package tomli; pip install 'vivavoce[server]'"
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path}: is not TOML: {error}; mend the line") from None


def closest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the most similar known name, or all known names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
