"""The page of books in a real browser: from a dropped file to the finished audio."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.books.make_book import make_book
from tests.books.test_jobs import with_jobs
from tests.server.fake_backend import FakeBackend, Gate
from tests.server.http.browsing import CHROMIUM, chromium, saved, visiting

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def test_a_book_is_chosen_heard_while_it_is_made_and_downloaded(browser: Browser, tmp_path: Path) -> None:
    make_book(tmp_path / "book.epub", chars=2_000, chapters=3)
    speaker = FakeBackend(gate=Gate(pieces=60))
    with visiting(browser, speaker, make=partial(with_jobs, tmp_path / "jobs", speaker, segments=1)) as world:
        page = world.open("/books")
        expect(page.get_by_role("status")).to_have_text("0 books")
        expect(page.get_by_role("button", name="Make the audiobook")).to_be_disabled()
        page.get_by_label("EPUB, HTML, Markdown or text").set_input_files(tmp_path / "book.epub")
        expect(page.locator("#found-title")).to_have_text("The Long Way, A. Nonymous", timeout=60_000)
        page.get_by_role("checkbox", name="Chapter 3").uncheck()
        page.get_by_role("button", name="Add a person of the cast").click()
        page.get_by_label("Person 1", exact=True).fill("Ada")
        page.get_by_role("button", name="Make the audiobook").click()
        row = page.locator("#jobs > li")
        expect(row).to_contain_text(re.compile(r"Chapter 1, \d+ %, 0:0[1-9] can be heard"), timeout=60_000)
        row.get_by_role("button", name="Listen").click()
        expect(row).to_have_attribute("data-state", "playing", timeout=20_000)
        row.get_by_role("button", name="Stop").click()
        expect(row).to_have_attribute("data-state", "stopped")
        world.server.call(speaker.gate.set)
        expect(row).to_contain_text(re.compile(r"Finished, \d+:\d\d long"), timeout=60_000)
        expect(row.get_by_label("Listen from").locator("option")).to_have_count(2)
        audio = saved(page, row.get_by_role("button", name="Download"))
        assert audio[4:8] == b"ftyp"
        row.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("status")).to_have_text("0 books")
        world.server.call(world.server.state.jobs.close)
    assert {order.priority for order in speaker.orders} == {"batch"}


def test_a_server_without_jobs_says_so_and_a_file_that_is_no_book_too(browser: Browser, tmp_path: Path) -> None:
    with visiting(browser, FakeBackend()) as world:
        page = world.open("/books")
        expect(page.get_by_role("alert").first).to_contain_text("This server makes no books")
        expect(page.get_by_role("button", name="Make the audiobook")).to_be_hidden()
    speaker = FakeBackend()
    with visiting(browser, speaker, make=partial(with_jobs, tmp_path / "jobs", speaker)) as world:
        page = world.open("/books")
        book = {"name": "book.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7"}
        page.get_by_label("EPUB, HTML, Markdown or text").set_input_files(book)
        expect(page.locator("#make-trouble")).to_contain_text("is a PDF; convert it to EPUB", timeout=60_000)
        world.server.call(world.server.state.jobs.close)
