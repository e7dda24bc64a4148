"""The browser of the pages' tests, and a server that it visits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.server.fake_backend import FakeBackend
from tests.server.http.browsing import World, chromium, visiting


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def world(browser: Browser) -> Iterator[World]:
    with visiting(browser, FakeBackend()) as made:
        yield made
