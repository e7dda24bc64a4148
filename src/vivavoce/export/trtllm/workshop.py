"""The folder in which a checkpoint is made: it takes the target's place once it is complete.

It lies beside the target as `.NAME.unfinished` and outlives a break: the same conversion goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vivavoce.errors import InvalidRequest

_JOURNAL, _PLAN = "done", "plan"


class Workshop:
    """The folder and its journal of what is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        journal = folder / _JOURNAL
        self.done = frozenset(journal.read_text(encoding="utf-8").splitlines()) if journal.is_file() else frozenset()

    def note(self, pieces: Sequence[str]) -> None:
        """Write into the journal that pieces of work are done: their bytes must be on the disk."""
        with (self.folder / _JOURNAL).open("a", encoding="utf-8") as journal:
            journal.writelines(f"{piece}\n" for piece in pieces)
            journal.flush()
            os.fsync(journal.fileno())

    def finish(self, target: Path) -> None:
        """Take the place of the target; what it held is removed."""
        for name in (_JOURNAL, _PLAN):
            (self.folder / name).unlink(missing_ok=True)
        place = target.resolve()
        if not place.exists():
            os.replace(self.folder, place)
            return
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as aside:
            old = Path(aside) / "old"
            os.replace(place, old)
            try:
                os.replace(self.folder, place)
            except OSError:
                os.replace(old, place)
                raise


@contextmanager
def workshop_for(target: Path, plan: str) -> Iterator[Workshop]:
    """A workshop for a plan; one that was left by another plan is cleared.

    Raises:
        InvalidRequest: another process is at work on the same target.
        OSError: the place cannot be written.
    """
    place = target.resolve()
    folder = place.parent / f".{place.name}.unfinished"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(
                f"out: another conversion is writing {target}; wait for it, or choose another place"
            ) from None
        _prepare(folder, plan)
        yield Workshop(folder)
    finally:
        os.close(descriptor)


def _prepare(folder: Path, plan: str) -> None:
    marked = folder / _PLAN
    if marked.is_file() and marked.read_text(encoding="utf-8") == plan:
        return
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    marked.write_text(plan, encoding="utf-8")
