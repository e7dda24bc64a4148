"""Broken requests and files in small; `make soak` tries ten thousand of each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.fuzz import FILES, WIRE, Fuzzed, fuzz

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux' /proc")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", [*WIRE, *FILES])
def test_each_is_refused_clearly_and_in_time(kind: str) -> None:
    found = fuzz(kind, range(100), seed=0)
    assert found.broken == [], f"python -m tests.soak.fuzz --only {kind}: {found.broken}"
    assert found.outcomes.total() == 100
    assert len(found.outcomes) > 1, found.outcomes


def test_a_traceback_in_the_log_is_found() -> None:
    found, log = Fuzzed("http", range(1), 0), logging.getLogger("alone")
    log.addHandler(found)
    log.warning("nothing is wrong with this one")
    log.warning("a request failed", exc_info=KeyError("lost"))
    (only,) = found.broken
    assert "a request failed" in only
    assert "KeyError" in only
