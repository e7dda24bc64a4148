"""The pages of voices and figures, API keys and small screens, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.browsing import CHROMIUM, TEXT, Gate, World, launched, recording, visiting
from vivavoce.service.host.speaker import VoiceSummary
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.keys_writer import add_key, new_entry

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")

PAGES = ("/", "/voices", "/status")
PHONE = {"width": 360, "height": 740}
UNFOLD = """for (const each of document.querySelectorAll("details, fieldset, [role=alert]")) {
    each.open = true;
    each.hidden = false;
}"""
SMALL_TARGETS = """[...document.querySelectorAll("button, select, textarea, input:not([type=checkbox])")]
    .filter((each) => each.checkVisibility() && each.getBoundingClientRect().height < 34)
    .map((each) => each.id)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as one:
        yield one


@pytest.fixture
def world(browser: Browser) -> Iterator[World]:
    with visiting(browser, FakeSpeaker()) as made:
        yield made


def test_a_voice_comes_is_heard_and_goes(world: World) -> None:
    page = world.open("/voices")
    page.get_by_label("Name", exact=True).fill("berta")
    page.get_by_label("or a file").set_input_files(recording())
    page.get_by_label("What it says").fill("One, two, three.")
    page.get_by_label("Description").fill("a friend")
    page.get_by_role("button", name="Add voice").click()
    row = page.locator("[data-voice=berta]")
    expect(row).to_contain_text("a friend")
    expect(row).to_contain_text("One, two, three.")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    gate = world.speaker.gate = Gate(pieces=1)
    row.get_by_role("button", name="Listen to berta").click()
    expect(row.get_by_role("button", name="Stop berta")).to_be_visible()
    world.server.call(gate.set)
    expect(row).to_have_attribute("data-state", "finished")
    assert "playing" in world.states
    assert world.speaker.orders[0].voice == "berta"
    row.get_by_role("button", name="Delete berta").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Delete berta").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    assert world.speaker.stored == {}


def test_a_listed_voice_is_chosen_for_speaking(world: World) -> None:
    world.speaker.stored["", "berta"] = VoiceSummary("berta", "stored", True)
    page = world.open("/voices")
    page.get_by_role("link", name="Speak with berta").click()
    expect(page.get_by_label("Voice", exact=True)).to_have_value("berta")


def test_a_wrong_file_shows_the_servers_words(world: World) -> None:
    page = world.open("/voices")
    page.get_by_label("Name", exact=True).fill("berta")
    page.get_by_label("or a file").set_input_files({"name": "empty.wav", "mimeType": "audio/wav", "buffer": b""})
    page.get_by_role("button", name="Add voice").click()
    expect(page.get_by_role("alert")).to_contain_text("the given data is empty (0 bytes)")
    expect(page.get_by_label("Name", exact=True)).to_have_value("berta")


@pytest.fixture
def key(tmp_path: Path) -> tuple[str, KeyRing]:
    """A key, and the ring that knows it."""
    path = tmp_path / "keys.toml"
    path.touch(mode=0o600)
    secret = "vv_" + "a" * 43
    add_key(path, new_entry(secret, "team"))
    return secret, KeyRing.load(path)


def test_a_key_is_asked_for_and_kept(browser: Browser, key: tuple[str, KeyRing]) -> None:
    secret, ring = key
    with visiting(browser, FakeSpeaker(), ring) as world:
        page = world.open()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Key", exact=True).fill("vv_wrong")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_contain_text("is unknown")
        dialog.get_by_label("Key", exact=True).fill(secret)
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_have_count(0)
        expect(world.speak()).to_have_attribute("data-state", "finished")
        assert world.speaker.orders[0].owner == "team"
        assert page.evaluate("[localStorage.length, sessionStorage.getItem('vivavoce.api-key')]") == [0, secret]
        page.reload()
        expect(page.get_by_label("Voice", exact=True)).to_have_value("anna")
        page.get_by_role("button", name="API key").click()
        page.get_by_role("button", name="Forget the key").click()
        page.reload()
        dialog.get_by_label("Key", exact=True).fill(secret)
        dialog.get_by_label("Remember").check()
        dialog.get_by_role("button", name="Use this key").click()
        expect(page.get_by_label("Voice", exact=True)).to_have_value("anna")
        assert page.evaluate(
            "[localStorage.getItem('vivavoce.api-key'), sessionStorage.getItem('vivavoce.api-key')]"
        ) == [secret, None]


def test_status_shows_the_servers_figures(world: World) -> None:
    world.open()
    expect(world.speak()).to_have_attribute("data-state", "finished")
    page = world.open("/status")
    expect(page.locator("#state")).to_contain_text("Model fake.")
    expect(page.locator("[data-tile=requests] .figure")).to_have_text("1")
    expect(page.locator("[data-tile=requests]")).to_contain_text("1 stop")
    expect(page.locator("[data-tile=streams] .figure")).to_have_text("0")
    expect(page.locator("[data-tile=first] .figure")).to_have_text(re.compile(r"^[\d.]+ m?s / [\d.]+ m?s$"))
    expect(page.locator("[data-tile=memory] .figure")).to_have_text("0.00 GiB")
    expect(page.locator("[data-tile=streams] polyline").first).to_be_attached()


def test_status_lives_without_most_figures(world: World) -> None:
    world.page.route("**/metrics", lambda route: route.fulfill(body="# odd\nvivavoce_streams_active 3\n}{\n"))
    page = world.open("/status")
    expect(page.locator("[data-tile=streams] .figure")).to_have_text("3")
    expect(page.locator("[data-tile=slots] .figure")).to_have_text("– / –")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_keyboard_is_enough(world: World) -> None:
    page = world.open()
    expect(page.get_by_label("Voice", exact=True)).to_have_value("anna")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#sound")).to_have_attribute("data-state", "finished")
    for name in ("Voice", "Advanced", "Speak"):
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_contain_text("anna" if name == "Voice" else name)
    world.speaker.gate = Gate(pieces=1)
    page.keyboard.press("Enter")
    expect(page.locator("#sound")).to_have_attribute("data-state", "waiting")
    page.keyboard.press("Escape")
    expect(page.locator("#sound")).to_have_attribute("data-state", "idle")
    world.server.call(world.speaker.streams[1].cancelled.wait)


@pytest.mark.parametrize("path", PAGES)
def test_a_small_screen_needs_no_sideways_scrolling(browser: Browser, path: str) -> None:
    with visiting(browser, FakeSpeaker(), viewport=PHONE) as world:
        page = world.open(path)
        page.evaluate(UNFOLD)
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert page.evaluate(SMALL_TARGETS) == []
