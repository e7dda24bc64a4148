"""The page that speaks, in a real browser."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.browsing import (
    CHROMIUM,
    TEXT,
    Gate,
    World,
    colours,
    frames_of,
    launched,
    saved,
    visiting,
)
from vivavoce.errors import Overloaded
from vivavoce.service.host.order import Recording

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as one:
        yield one


@pytest.fixture
def world(browser: Browser) -> Iterator[World]:
    with visiting(browser, FakeSpeaker()) as made:
        yield made


def test_sound_plays_while_the_answer_goes_on(world: World) -> None:
    gate = world.speaker.gate = Gate(pieces=2)
    page = world.open()
    sound = world.speak()
    # What came was played, the rest is held back at the server: the answer cannot have ended.
    expect(page.locator("#gaps")).to_have_text("1")
    assert world.states == ["waiting", "playing", "waiting"]
    assert world.speaker.streams[0].verdict is None
    expect(page.locator("#audio-time")).to_have_text("140 ms")
    assert colours(page) > 10
    world.server.call(gate.set)
    expect(sound).to_have_attribute("data-state", "finished")
    expect(sound).to_have_attribute("data-ending", "finished")
    assert world.states == ["waiting", "playing", "waiting", "playing", "finished"]
    expect(page.get_by_role("status").filter(has_text="Finished.")).to_be_visible()
    expect(page.locator("#first-sound")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    expect(page.locator("#real-time")).to_have_text(re.compile(r"^\d+\.\d+$"))
    wav = saved(page, page.get_by_role("button", name="Download WAV").first)
    assert frames_of(wav) == (24_000, 240 * len(TEXT))


def test_pause_goes_on_where_it_was(world: World) -> None:
    page = world.open()
    text = "A longer text, so that there is time to press a button in its middle. " * 6
    sound = world.speak(text)
    # From here on all of it is there: what interrupts the sound is the button alone.
    expect(page.locator("#audio-time")).to_have_text(f"{len(text) / 100:.2f} s")
    expect(sound).to_have_attribute("data-state", "playing")
    gaps, states = page.locator("#gaps").inner_text(), len(world.states)
    page.get_by_role("button", name="Pause").click()
    expect(sound).to_have_attribute("data-state", "paused")
    page.get_by_role("button", name="Go on").click()
    expect(sound).to_have_attribute("data-state", "finished")
    assert world.states[states:] == ["paused", "playing", "finished"]
    expect(page.locator("#gaps")).to_have_text(gaps)
    page.get_by_role("button", name="Play again").click()
    expect(sound).to_have_attribute("data-state", "playing")
    page.get_by_role("button", name="Stop").click()
    expect(sound).to_have_attribute("data-state", "idle")
    assert len(world.speaker.orders) == 1


def test_stop_ends_it_at_the_server(world: World) -> None:
    world.speaker.gate = Gate(pieces=1)
    page = world.open()
    sound = world.speak()
    expect(sound).to_have_attribute("data-state", "waiting")
    expect(page.locator("#audio-time")).to_have_text("100 ms")
    page.get_by_role("button", name="Stop").click()
    world.server.call(world.speaker.streams[0].cancelled.wait)
    expect(sound).to_have_attribute("data-state", "idle")
    expect(sound).to_have_attribute("data-ending", "cancelled")
    expect(page.locator("#history")).to_contain_text("stopped")


def test_the_spoken_sentence_is_marked(world: World) -> None:
    first, second = "🙂 Good morning to you. ", "And a good evening too."
    gate = world.speaker.gate = Gate(pieces=math.ceil(len(first) / 10) + 1)
    page = world.open()
    world.speak(first + second)
    expect(page.locator("#mirror mark")).to_have_text(second)
    world.server.call(gate.set)
    expect(page.locator("#mirror mark")).to_have_count(0)


def test_settings_reach_the_server(world: World) -> None:
    page = world.open()
    page.get_by_text("Advanced").click()
    page.get_by_label("Speed").fill("1.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Instructions").fill("Warmly.")
    page.get_by_label("Chunks").select_option("time_based")
    page.get_by_label("Numbers read in").select_option("zh")
    expect(world.speak()).to_have_attribute("data-state", "finished")
    order = world.speaker.orders[0]
    assert (order.text, order.voice, order.speed, order.seed) == (TEXT, "anna", 1.5, 7)
    assert (order.instruct, order.policy, order.language) == ("Warmly.", "time_based", "zh")
    mp3 = saved(page, page.get_by_role("button", name="Download MP3"))
    assert mp3[:3] == b"ID3" or mp3[0] == 0xFF
    assert world.speaker.orders[1] == order


def test_a_recording_is_spoken_like(world: World) -> None:
    page = world.open()
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_label("Voice", exact=True).select_option(label="A recording of your own …")
    page.get_by_role("button", name="Record", exact=True).click()
    length = page.get_by_role("progressbar", name="Seconds recorded")
    expect(length).to_have_attribute("value", re.compile(r"^[1-9]"))  # as soon as a second is there
    page.get_by_role("button", name="Stop recording").click()
    expect(length).to_be_hidden()
    expect(page.get_by_role("group", name="Recording")).to_contain_text("Recorded")
    page.get_by_label("What it says").fill("One, two.")
    page.get_by_role("button", name="Speak", exact=True).click()
    expect(page.locator("#sound")).to_have_attribute("data-state", "finished")
    sent = world.speaker.orders[0].voice
    assert isinstance(sent, Recording)
    assert sent.transcript == "One, two."
    assert sent.content[:4] == b"RIFF"
    rate, frames = frames_of(sent.content)
    assert frames / rate > 0.5


@pytest.mark.parametrize(("fails_after", "audio"), [(0, "–"), (2, "140 ms")])
def test_failures_say_what_to_do(browser: Browser, fails_after: int, audio: str) -> None:
    with visiting(browser, FakeSpeaker(fails_after=fails_after)) as world:
        page = world.open()
        sound = world.speak()
        expect(sound).to_have_attribute("data-state", "failed")
        expect(sound).to_have_attribute("data-ending", "error")
        expect(page.get_by_role("alert")).to_contain_text("it broke")
        expect(page.locator("#audio-time")).to_have_text(audio)


def test_a_server_that_is_full_says_when_to_come_again(browser: Browser) -> None:
    with visiting(browser, FakeSpeaker(refuses_with=Overloaded("engine: is full", 3.0))) as world:
        page = world.open()
        expect(world.speak()).to_have_attribute("data-state", "failed")
        expect(page.get_by_role("alert")).to_have_text("engine: is full: try again in 3 s.")


def test_texts_that_cannot_be_sent_are_not(world: World) -> None:
    page = world.open()
    world.speak(" ")
    expect(page.get_by_role("alert")).to_contain_text("write at least one word")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    world.speak("🙂" * 20_001)
    expect(page.locator("#count")).to_have_text("20,001 / 20,000")
    expect(page.get_by_role("alert")).to_contain_text("Split it")
    assert world.speaker.orders == []


def test_a_connection_that_breaks_is_told_from_an_end(world: World) -> None:
    world.speaker.gate = Gate(pieces=2)
    page = world.open()
    sound = world.speak()
    expect(page.locator("#audio-time")).to_have_text("140 ms")
    world.server.call(world.drops[0])
    expect(sound).to_have_attribute("data-state", "failed")
    expect(sound).to_have_attribute("data-ending", "cut")
    expect(page.get_by_role("alert")).to_contain_text("ended before the speech did")
    wav = saved(page, page.get_by_role("button", name="Download WAV").first)
    assert frames_of(wav) == (24_000, 14 * 240)
    page.context.set_offline(True)
    page.get_by_role("button", name="Speak", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")


def test_an_answer_without_a_verdict_is_cut(world: World) -> None:
    body = 'data: {"type":"speech.audio.delta","audio":"AAAAAAA="}\n\n'
    world.page.route("**/v1/audio/speech", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    world.open()
    expect(world.speak()).to_have_attribute("data-ending", "cut")


def test_history_disturbs_nobody_who_uses_it(world: World) -> None:
    page = world.open()
    expect(world.speak()).to_have_attribute("data-state", "finished")
    items = page.locator("#history > li")
    items.first.evaluate("(item) => (item.dataset.seen = 'before')")
    expect(world.speak("Another one.")).to_have_attribute("data-state", "finished")
    expect(items).to_have_count(2)
    expect(items.last).to_have_attribute("data-seen", "before")  # what sounds there goes on
    expect(items.first).to_contain_text("Another one.")
    items.first.get_by_role("button", name="Delete").press("Enter")
    expect(items).to_have_count(1)
    expect(page.locator("#history-title")).to_be_focused()


def test_history_is_kept_until_it_is_deleted(world: World) -> None:
    page = world.open()
    expect(world.speak()).to_have_attribute("data-state", "finished")
    expect(world.speak("Another one.")).to_have_attribute("data-state", "finished")
    items = page.locator("#history > li")
    expect(items).to_have_count(2)
    page.reload()
    expect(items).to_have_count(2)
    expect(items.first).to_contain_text("Another one.")
    expect(items.first).to_contain_text("anna")
    wav = saved(page, items.first.get_by_role("button", name="Download WAV"))
    assert frames_of(wav) == (24_000, 12 * 240)
    items.last.get_by_role("button", name="Use again").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value(TEXT)
    items.first.get_by_role("button", name="Delete").click()
    expect(items).to_have_count(1)
    page.get_by_role("button", name="Delete all").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    expect(items).to_have_count(0)
    page.reload()
    expect(page.locator("#count")).not_to_have_text("0 / 20,000")  # the draft is back, so the page is ready
    expect(items).to_have_count(0)
