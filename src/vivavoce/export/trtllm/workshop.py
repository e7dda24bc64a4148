"""The folder in which a checkpoint is made: it takes the target's place once it is complete.

It lies beside the target as `.NAME.unfinished` and outlives a break: the same conversion goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export.fresh_folder import take_place
from vivavoce.export.named_errors import naming

_JOURNAL, _PLAN = "done", "plan"


class Workshop:
    """The folder and its journal of what is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done = _read_journal(folder / _JOURNAL)

    def note(self, pieces: Sequence[str]) -> None:
        """Write into the journal that pieces of work are done: their bytes must be on the disk."""
        path = self.folder / _JOURNAL
        with naming(path), path.open("a", encoding="utf-8") as journal:
            journal.writelines(f"{piece}\n" for piece in pieces)
            journal.flush()
            os.fsync(journal.fileno())

    def finish(self, target: Path) -> None:
        """Take the place of the target; what it held is removed."""
        for name in (_JOURNAL, _PLAN):
            (self.folder / name).unlink(missing_ok=True)
        take_place(self.folder, target.resolve())


@contextmanager
def workshop_for(target: Path, plan: str) -> Iterator[Workshop]:
    """A workshop for a plan; one that was left by another plan is cleared.

    It outlives a break. A refusal removes it, as the same call would be refused again, unless there is work of an
    earlier call in it that may yet go on.

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
        begun = _prepare(folder, plan)
        try:
            yield Workshop(folder)
        except (CheckpointError, InvalidRequest) as refusal:
            if isinstance(refusal, CheckpointError) or not begun:
                shutil.rmtree(folder)
            raise
    finally:
        os.close(descriptor)


def _prepare(folder: Path, plan: str) -> bool:
    """Clear the folder unless it is of this plan; returns whether it is."""
    marked = folder / _PLAN
    if marked.is_file() and marked.read_bytes() == plan.encode():
        return True
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with naming(marked):
        marked.write_bytes(plan.encode())
    return False


def _read_journal(path: Path) -> frozenset[str]:
    """The pieces that are done. A line that a break cut short names another piece, so it is cut off."""
    if not path.is_file():
        return frozenset()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    return frozenset(whole.decode(errors="replace").splitlines())
