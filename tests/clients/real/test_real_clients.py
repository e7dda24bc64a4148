"""Other people's clients speak with a server of ours: those that are installed here, and `long` all others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.real.catalogue import CLIENTS, RealClient
from tests.clients.real.running import Servers, run_client

pytest.importorskip("pocketsphinx", reason="needs the extra eval")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers"), stack)


@pytest.mark.parametrize(
    "client",
    [pytest.param(one, id=one.script, marks=() if one.light else pytest.mark.long) for one in CLIENTS],
)
def test_every_call_is_right(client: RealClient, servers: Servers, tmp_path: Path) -> None:
    if client.program and shutil.which(client.program) is None:
        pytest.skip(f"{client.program} is not installed")
    rows = list(run_client(client, servers, tmp_path / "heard"))
    assert rows
    assert [row for row in rows if row.fault] == []
