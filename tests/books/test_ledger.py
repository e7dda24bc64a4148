"""The ledger keeps whole segments, whatever happens to the run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from vivavoce.errors import InvalidRequest
from vivavoce_books.ledger import Ledger, Piece, Spoken, open_ledger

RATE = 24_000


def spoken(seconds: float = 0.1, seed: int = 0) -> Spoken:
    samples = np.random.default_rng(seed).integers(-32767, 32768, round(RATE * seconds)).astype(np.int16)
    half = len(samples) // 2
    return Spoken((Piece(0, 5, half, True, False), Piece(5, 9, len(samples) - half, False, True)), samples)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "book.m4b.ledger"


def test_segments_come_back_as_they_were(path: Path) -> None:
    one, empty = spoken(), Spoken((Piece(0, 3, 0, True, False),), np.zeros(0, np.int16))
    with open_ledger(path) as ledger:
        ledger.add(7, one, RATE)
        ledger.add(2, empty, RATE)
    with open_ledger(path) as ledger:
        assert ledger.places() == {2, 7}
        assert ledger.pieces(7) == one.pieces
        np.testing.assert_array_equal(ledger.samples(7), one.samples)
        assert len(ledger.samples(2)) == 0
        with pytest.raises(InvalidRequest, match="lacks segment 4"):
            ledger.samples(3)
    with open_ledger(path, restart=True) as ledger:
        assert ledger.places() == set()


def test_a_setting_that_differs_is_named_once_something_was_spoken(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.agree({"speed": "1.0", "seed": "0"})
        ledger.agree({"speed": "1.0", "seed": "3"})
        ledger.agree({"model": "abc"}, shown=False)
        ledger.add(0, spoken(), RATE)
        ledger.agree({"speed": "1.0", "seed": "3"})
        with pytest.raises(InvalidRequest, match=r"another seed \(3, now 4\); .*--restart"):
            ledger.agree({"speed": "1.0", "seed": "4"})
        with pytest.raises(InvalidRequest, match="another model; "):
            ledger.agree({"model": "def"}, shown=False)
    with open_ledger(path) as ledger, pytest.raises(InvalidRequest, match="another speed"):
        ledger.agree({"speed": "2.0", "seed": "3"})


def test_a_full_disk_leaves_the_segments_before(path: Path) -> None:
    def limit(ledger: Ledger, pages: int) -> None:
        ledger._connection.execute(f"PRAGMA max_page_count = {pages}")

    with open_ledger(path) as ledger:
        ledger.add(0, spoken(1), RATE)
        limit(ledger, 20)
        with pytest.raises(InvalidRequest, match=r"cannot be written \(database or disk is full\); free space"):
            ledger.add(1, spoken(2), RATE)
        assert ledger.places() == {0}
        limit(ledger, 100_000)
        ledger.add(1, spoken(2, seed=1), RATE)
    with open_ledger(path) as ledger:
        assert ledger.places() == {0, 1}
        np.testing.assert_array_equal(ledger.samples(0), spoken(1).samples)


def test_a_second_run_is_refused_while_the_first_one_is_open(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.add(0, spoken(), RATE)
        with pytest.raises(InvalidRequest, match="belongs to another run"), open_ledger(path):
            pass
        with pytest.raises(InvalidRequest, match="belongs to another run"), open_ledger(path, restart=True):
            pass
        ledger.add(1, spoken(), RATE)
    with open_ledger(path) as ledger:
        assert ledger.places() == {0, 1}


def test_a_file_that_is_no_ledger_stays_as_it_is(path: Path) -> None:
    path.write_bytes(b"my notes" * 100)
    with pytest.raises(InvalidRequest, match="not a ledger"), open_ledger(path):
        pass
    assert path.read_bytes() == b"my notes" * 100


def test_a_folder_without_permission_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written"), open_ledger(tmp_path / "none" / "x.ledger"):
        pass
    assert not (tmp_path / "none").exists()


def test_each_segment_is_kept_once(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.add(0, spoken(), RATE)
        with pytest.raises(InvalidRequest, match="UNIQUE"):
            ledger.add(0, spoken(seed=1), RATE)
        np.testing.assert_array_equal(ledger.samples(0), spoken().samples)
        assert isinstance(ledger._connection, sqlite3.Connection)
