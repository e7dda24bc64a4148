"""The entry point that docs/architecture.md shows speaks, and its requests are counted."""

from __future__ import annotations

import asyncio
import re

import numpy as np
from shown import PAGES, ROOT

from tests.server.fake_backend import FakeBackend
from tests.server.http.serving import make_state

INNER = ("runtimes", "vivavoce_runtimes", "engine_process", "server/http")
"""Folders whose files are named alone where the text is about them."""
PAGE = PAGES["docs/architecture.md"]


async def test_its_entry_point_speaks() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "extending.md", "exec"), names)
    state = make_state(FakeBackend())
    server = await names["serve_lines"](state.dispatcher, 0)  # type: ignore[operator]
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"Hello there.\n")
    samples = np.frombuffer(await reader.read(), "<i2")
    writer.close()
    server.close()
    assert len(samples) > 1000
    assert abs(samples).max() > 0
    samples_of = [one for family in state.dispatcher.metrics.families() for one in family.samples]
    assert [one.value for one in samples_of if one.labels == {"door": "lines", "outcome": "stop"}] == [1.0]


def test_the_files_that_it_names_are_there() -> None:
    sources = (ROOT / "src", ROOT / "src" / "vivavoce")
    inner = [root / folder for root in (*sources, ROOT / "tests") for folder in INNER]
    folders = (ROOT, ROOT / "docs", *sources, *inner)
    for path in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md))`", PAGE):
        assert any((folder / path).is_file() for folder in folders), path
