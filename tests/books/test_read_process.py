"""A run that is killed in the middle of a transaction, and the run that goes on where it was."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.cli_harness import spawn, start
from tests.engine.engine_helpers import relative_error
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


def kept(path: Path) -> dict[int, NDArray[np.int16]]:
    with open_ledger(path) as ledger:
        return {place: ledger.samples(place) for place in ledger.places()}


def near(one: NDArray[Any], other: NDArray[Any], most: float = 0.03) -> bool:
    """The same speech, but for rounding: sentences that were spoken beside others sum in another order on some CPUs."""
    return relative_error(one.astype(np.float32), other.astype(np.float32)) < most


def test_a_killed_run_goes_on_to_what_an_uninterrupted_one_says(work: Path) -> None:
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
    assert all(np.array_equal(after[place], samples) for place, samples in before.items()), "nothing is spoken twice"
    expected = kept(work / "whole.m4b.ledger")
    assert after.keys() == expected.keys()
    assert all(near(samples, expected[place]) for place, samples in after.items())
    decoded = []
    for path in (killed, whole):
        with av.open(str(path)) as opened:
            decoded.append(np.concatenate([frame.to_ndarray().ravel() for frame in opened.decode(audio=0)]))
    assert near(*decoded, most=0.1)  # AAC rounds once more
