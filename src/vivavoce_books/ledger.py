"""The ledger of a book: an SQLite file with each spoken segment, so that a new run continues an interrupted run."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest

_DROPS = ("DROP TABLE IF EXISTS segments", "DROP TABLE IF EXISTS settings")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS segments (place INTEGER PRIMARY KEY, pieces TEXT NOT NULL, audio BLOB NOT NULL)",
)


class Piece(NamedTuple):
    """Characters `start` to `end` − 1 of a segment's text. frames: samples of their speech. closes: a sentence ends
    with these characters. cut: their speech was stopped at the length limit, so words may be missing.
    """

    start: int
    end: int
    frames: int
    closes: bool
    cut: bool


@dataclass(frozen=True, eq=False)
class Spoken:
    """A spoken segment: its pieces, and the samples of all pieces together, [n] int16, without pauses."""

    pieces: tuple[Piece, ...]
    samples: NDArray[np.int16]


class Ledger:
    """A ledger, opened by `open_ledger`. If SQLite fails, methods raise InvalidRequest; stored segments stay intact."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    def agree(self, settings: Mapping[str, str], *, shown: bool = True) -> None:
        """Store the settings. InvalidRequest: a setting differs from the stored segments' setting.

        shown: whether the error shows the old and the new value; False for fingerprints, which tell a user nothing.
        """
        with _explaining(self.path), self._connection as transaction:
            kept = dict(transaction.execute("SELECT * FROM settings WHERE EXISTS (SELECT 1 FROM segments)"))
            for name, value in settings.items():
                if (was := kept.get(name, value)) != value:
                    values = f" ({was}, now {value})" if shown else ""
                    raise InvalidRequest(
                        f"ledger: {str(self.path)!r} was begun with another {name}{values}; use the former one, or "
                        "begin again with --restart"
                    )
            transaction.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", settings.items())

    def places(self) -> set[int]:
        """Return the index (`Segment.index`) of each stored segment."""
        with _explaining(self.path):
            return {place for (place,) in self._connection.execute("SELECT place FROM segments")}

    def add(self, place: int, spoken: Spoken, sample_rate: int) -> None:
        from vivavoce.frontend.audio.encode import AudioFormat, encode_whole

        floats = (spoken.samples / 32768).astype(np.float32)
        audio = encode_whole(AudioFormat.FLAC, floats, sample_rate) if len(floats) else b""
        with _explaining(self.path), self._connection as transaction:
            transaction.execute("INSERT INTO segments VALUES (?, ?, ?)", (place, json.dumps(spoken.pieces), audio))

    def pieces(self, place: int) -> tuple[Piece, ...]:
        return tuple(Piece(*one) for one in json.loads(self._row("pieces", place)))

    def samples(self, place: int) -> NDArray[np.int16]:
        """Return the samples of a stored segment, [n] int16."""
        import soundfile

        content = self._row("audio", place)
        return soundfile.read(io.BytesIO(content), dtype="int16")[0] if content else np.zeros(0, np.int16)

    def _row(self, column: str, place: int) -> bytes:
        with _explaining(self.path):
            found = self._connection.execute(f"SELECT {column} FROM segments WHERE place = ?", (place,)).fetchone()
        if found is None:
            raise InvalidRequest(f"ledger: {str(self.path)!r} lacks segment {place + 1}; run the command again")
        value: bytes = found[0]
        return value


def samples_in(path: Path, place: int) -> NDArray[np.int16]:
    """Return a segment's samples, [n] int16, from a shared ledger, to which another process may write meanwhile."""
    with _explaining(path), closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
        return Ledger(path, connection).samples(place)


@contextmanager
def open_ledger(path: Path, *, restart: bool = False, shared: bool = False) -> Iterator[Ledger]:
    """Open a ledger; no other process may write it until the block ends. restart: empty it; shared: others may read it.

    Raises:
        InvalidRequest: another run uses the file, it is not a ledger, or it cannot be written.
    """
    with _explaining(path), closing(sqlite3.connect(path, timeout=0.0)) as connection:
        connection.execute(f"PRAGMA {'journal_mode = WAL' if shared else 'locking_mode = EXCLUSIVE'}")
        connection.execute("PRAGMA synchronous = FULL")
        with connection as transaction:
            transaction.execute("BEGIN EXCLUSIVE")
            for statement in (*(_DROPS if restart else ()), *_TABLES):
                transaction.execute(statement)
        ledger = Ledger(path, connection)
        ledger.agree({"format of the ledger": "1"})
        yield ledger


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", "") or str(error)
        if "BUSY" in code or "locked" in code:
            way = "belongs to another run that still writes it; wait for its end, or choose another output"
        elif "NOTADB" in code or "not a database" in code or "no such column" in str(error):
            way = "is another file, not a ledger of a book; remove it, or choose another output"
        else:
            way = f"cannot be written ({error}); free space, and the same command goes on"
        raise InvalidRequest(f"ledger: {str(path)!r} {way}") from None
