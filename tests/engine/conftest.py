"""One engine for all tests of a file that only speak with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.engine_helpers import running
from vivavoce.engine.engine import Engine
from vivavoce.models.build import Models


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with running(models) as engine:
        yield engine
