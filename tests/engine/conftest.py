"""One engine for all tests of a file that only speak with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.engine_helpers import running
from vivavoce.engine.engine import Engine
from vivavoce.models.build import Models


@pytest.fixture(scope="session")
def models(models: Models, request: pytest.FixtureRequest) -> Models:
    """CosyVoice2's, and CosyVoice3's where a test asks for both."""
    if getattr(request, "param", "v2") == "v2":
        return models
    of_v3: Models = request.getfixturevalue("models_v3")
    return of_v3


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with running(models) as engine:
        yield engine
