"""The note that a finished download leaves in its folder: which revision, which bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD = "vivavoce-download.json"


@dataclass(frozen=True)
class FileRecord:
    """One file as it was written."""

    size: int
    sha256: str


@dataclass(frozen=True)
class DownloadRecord:
    """What a folder was filled with; written last, so its presence means that every file was complete."""

    model: str
    source: str
    repository: str
    revision: str
    files: Mapping[str, FileRecord]

    def is_whole(self, folder: Path) -> bool:
        """Whether every file is still there with its size; contents are not read again."""
        return all(size_of(folder / path) == file.size for path, file in self.files.items())


def size_of(path: Path) -> int:
    """Bytes of a file, -1 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def read_record(folder: Path) -> DownloadRecord | None:
    """The note in `folder`; None where there is none or it cannot be understood."""
    try:
        fields = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = {path: FileRecord(int(file["size"]), str(file["sha256"])) for path, file in fields["files"].items()}
        return DownloadRecord(
            model=str(fields["model"]),
            source=str(fields["source"]),
            repository=str(fields["repository"]),
            revision=str(fields["revision"]),
            files=files,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_record(folder: Path, record: DownloadRecord) -> None:
    """Write the note, replacing an older one in one step."""
    new = folder / f"{RECORD}.new"
    new.write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(new, folder / RECORD)
