"""The entry point that docs/extending.md shows speaks, and its requests are counted."""

from __future__ import annotations

import asyncio
import re

import numpy as np
from shown import PAGES, ROOT

from tests.server.fake_backend import FakeBackend
from tests.server.http.serving import make_state

PAGE = PAGES["docs/extending.md"]


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
    for path in re.findall(r"`((?:tests/|docs/)?[\w/]+\.(?:py|md))`", PAGE):
        places = (ROOT / path, ROOT / "src" / "vivavoce" / path)
        beside = [
            found
            for folder in ("models/exported", "engine/backends")
            for found in [ROOT / "src" / "vivavoce" / folder / path, ROOT / "tests" / folder / path]
        ]
        assert any(place.is_file() for place in (*places, *beside)), path
