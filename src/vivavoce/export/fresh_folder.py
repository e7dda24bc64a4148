"""A folder that appears complete or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vivavoce.errors import InvalidRequest


def check_target(target: Path, source: Path, *, force: bool, mark: str, field: str = "out") -> None:
    """Refuse a place where nothing may be written; nothing is touched.

    Args:
        target: the folder to make. It may be absent or empty.
        source: the folder that is read meanwhile.
        force: it may also hold an earlier export, which is a folder with the file `mark`.
        mark: name of a file that every export has, and no other folder.
        field: what the target was given as; errors name it.

    Raises:
        InvalidRequest: anything else lies there, or the source does.
    """
    place, origin = target.resolve(), source.resolve()
    if place == origin or place in origin.parents or origin in place.parents:
        raise InvalidRequest(f"{field}: {target} and the model's folder lie within each other; choose another place")
    here = Path.cwd()
    if place == here or place in here.parents:
        raise InvalidRequest(f"{field}: the current folder lies in {target}, which a new one replaces; name another")
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InvalidRequest(f"{field}: {target} is no folder; choose another place")
    if not any(target.iterdir()):
        return
    if not force:
        raise InvalidRequest(f"{field}: {target} is not empty; add --force to replace it, or choose another place")
    if not (target / mark).is_file():
        raise InvalidRequest(
            f"{field}: {target} holds no {mark}, so it is no earlier export and is not replaced; choose another place"
        )


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside the target, which takes its place when the block ends without an error.

    What the target held is removed then, and only then: call `check_target` first.

    Raises:
        OSError: the place cannot be written; it is left as it was.
    """
    place = target.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as workshop:
        new = Path(workshop) / "new"
        new.mkdir()
        yield new
        take_place(new, place)


def take_place(new: Path, place: Path) -> None:
    """Move a folder to a place beside it; what that held is removed.

    Raises:
        OSError: the place cannot be written; it is left as it was.
    """
    if not place.exists():
        os.replace(new, place)
        return
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as aside:
        old = Path(aside) / "old"
        os.replace(place, old)
        try:
            os.replace(new, place)
        except OSError:
            os.replace(old, place)
            raise
