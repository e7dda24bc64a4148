"""A run that is killed in the middle of a transaction, and the run that goes on where it was."""

from __future__ import annotations

import signal
from pathlib import Path

import av
import numpy as np
import pytest

from tests.cli.cli_harness import spawn, start
from vivavoce_books.ledger import open_ledger

pytestmark = pytest.mark.process

BOOK = "Chapter 1\n\nIt rained.\n\nAll day long.\n\nChapter 2\n\nThey slept.\n\nThen they left.\n"
DIES = """
import os, signal, sys
from vivavoce.cli.main import main
from vivavoce_books.ledger import Ledger

add = Ledger.add

def add_or_die(self, place, spoken, sample_rate):
    if len(self.places()) == 2:
        self._connection.execute("INSERT INTO segments VALUES (999, '[]', zeroblob(8000000))")
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, place, spoken, sample_rate)

Ledger.add = add_or_die
sys.exit(main())
"""


@pytest.fixture
def work(tmp_path: Path, babble: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VIVAVOCE_MODEL", str(babble))
    monkeypatch.delenv("VIVAVOCE_VOICES", raising=False)
    (tmp_path / "book.txt").write_text(BOOK, encoding="utf-8")
    return tmp_path


def kept(path: Path) -> dict[int, bytes]:
    with open_ledger(path) as ledger:
        return {place: ledger.samples(place).tobytes() for place in ledger.places()}


def test_a_killed_run_goes_on_to_the_bits_of_an_uninterrupted_one(work: Path) -> None:
    book, killed, whole = work / "book.txt", work / "killed.m4b", work / "whole.m4b"
    with start("read", book, "-o", killed, program=("-c", DIES)) as process:
        process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert not killed.exists()
    before = kept(work / "killed.m4b.ledger")
    assert len(before) == 2
    resumed = spawn("read", book, "-o", killed)
    assert resumed.code == 0, resumed.err
    assert "going on at chapter" in resumed.err
    assert spawn("read", book, "-o", whole).code == 0
    after = kept(work / "killed.m4b.ledger")
    assert len(after) == 6
    assert after.items() > before.items()
    assert after == kept(work / "whole.m4b.ledger")
    decoded = []
    for path in (killed, whole):
        with av.open(str(path)) as opened:
            decoded.append(np.concatenate([frame.to_ndarray().ravel() for frame in opened.decode(audio=0)]))
    np.testing.assert_array_equal(*decoded)
