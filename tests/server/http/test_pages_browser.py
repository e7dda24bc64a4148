"""The pages in a real browser, at a real server whose speaker can be held in the middle of a sentence."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.server.fake_backend import FakeBackend, Gate
from tests.server.http.browsing import CHROMIUM, TEXT, World, frames_of, saved, sound_file, visiting
from vivavoce.errors import InvalidText, Overloaded
from vivavoce.frontend.speech import Recording
from vivavoce.server.http import pages
from vivavoce.server.keys import KeyRing, add_key, new_entry

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH"),
]
COLOURS = """() => {
    const canvas = document.getElementById("picture");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""
"""How many the picture has."""


def test_sound_plays_while_the_answer_goes_on(world: World) -> None:
    gate = world.speaker.gate = Gate(pieces=2)
    page = world.open()
    sound = world.speak()
    # What came was played, the rest is held back at the server: the answer cannot have ended.
    expect(page.locator("#gaps")).to_have_text("1")
    assert world.states == ["waiting", "playing", "waiting"]
    assert world.speaker.streams[0].verdict is None
    expect(page.locator("#audio-time")).to_have_text("140 ms")
    assert page.evaluate(COLOURS) > 10
    world.server.call(gate.set)
    expect(sound).to_have_attribute("data-state", "finished")
    expect(sound).to_have_attribute("data-ending", "finished")
    assert world.states == ["waiting", "playing", "waiting", "playing", "finished"]
    expect(page.get_by_role("status").filter(has_text="Finished.")).to_be_visible()
    expect(page.locator("#first-sound")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    expect(page.locator("#real-time")).to_have_text(re.compile(r"^\d+\.\d+$"))
    wav = saved(page, page.get_by_role("button", name="WAV"))
    assert frames_of(wav) == (24_000, 240 * len(TEXT))


def test_pause_goes_on_where_it_was(world: World) -> None:
    page = world.open()
    text = "A longer text, so that there is time to press a button in its middle. " * 6
    sound = world.speak(text)
    # From here on all of it is there: what interrupts the sound is the button alone.
    expect(page.locator("#audio-time")).to_have_text(f"{len(text) / 100:.2f} s")
    expect(sound).to_have_attribute("data-state", "playing")
    gaps, states = page.locator("#gaps").text_content(), len(world.states)
    page.get_by_role("button", name="Pause").click()
    expect(sound).to_have_attribute("data-state", "paused")
    page.get_by_role("button", name="Go on").click()
    expect(sound).to_have_attribute("data-state", "finished")
    assert world.states[states:] == ["paused", "playing", "finished"]
    expect(page.locator("#gaps")).to_have_text(gaps or "")
    page.get_by_role("button", name="Play", exact=True).click()
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
    page.get_by_label("Take").fill("7")
    page.get_by_label("Instructions").fill("Warmly.")
    page.get_by_label("Numbers read in").select_option("zh")
    page.get_by_label("Numbers and signs").select_option(label="left as they are written")
    expect(world.speak()).to_have_attribute("data-state", "finished")
    order = world.speaker.orders[0]
    assert (order.text, order.voice, order.speed, order.seed) == (TEXT, "anna", 1.5, 7)
    assert (order.instruct, order.language, order.reading) == ("Warmly.", "zh", "off")
    page.get_by_role("button", name="Throw dice").click()
    expect(page.get_by_label("Take")).not_to_have_value("7")


def test_a_recording_is_spoken_like(world: World) -> None:
    page = world.open()
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("radio", name="Your own recording").check()
    page.get_by_role("button", name="Record", exact=True).click()
    loudness = page.get_by_role("meter", name="Loudness of the microphone")
    expect(loudness).to_have_js_property("hidden", False)
    expect(loudness).not_to_have_js_property("value", 0)  # Chromium's microphone beeps
    length = page.get_by_role("progressbar", name="Seconds recorded")
    expect(length).to_have_attribute("value", re.compile(r"^[1-9]"))  # as soon as a second is there
    page.get_by_role("button", name="Stop recording").click()
    expect(length).to_be_hidden()
    expect(page.get_by_role("group", name="Recording")).to_contain_text("Recorded")
    page.get_by_role("button", name="I read this sentence").click()
    expect(page.get_by_label("What it says")).to_have_value(re.compile("^The rain had stopped"))
    page.get_by_label("What it says").fill("One, two.")
    page.get_by_role("button", name="Speak", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("its owner has agreed")
    page.get_by_label("its owner has agreed").check()
    page.get_by_role("button", name="Speak", exact=True).click()
    expect(page.locator("#sound")).to_have_attribute("data-state", "finished")
    sent = world.speaker.orders[0].voice
    assert isinstance(sent, Recording)
    assert sent.transcript == "One, two."
    assert sent.content[:4] == b"RIFF"
    rate, frames = frames_of(sent.content)
    assert frames / rate > 0.5


@pytest.mark.parametrize(
    ("speaker", "told", "audio"),
    [
        (FakeBackend(fails_after=0), "The speech engine has stopped", "–"),
        (FakeBackend(fails_after=2), "The speech engine has stopped", "140 ms"),
        (FakeBackend(refuses_with=InvalidText("text: no such letter; leave it out")), "No such letter; leave it", "–"),
        (FakeBackend(refuses_with=Overloaded("engine: is full", 3600.0)), "busy with other speech", "–"),
    ],
)
def test_failures_say_what_to_do(browser: Browser, speaker: FakeBackend, told: str, audio: str) -> None:
    with visiting(browser, speaker) as world:
        page = world.open()
        sound = world.speak()
        expect(sound).to_have_attribute("data-state", "failed")
        expect(sound).to_have_attribute("data-ending", "error")
        expect(page.get_by_role("alert")).to_contain_text(told)
        expect(page.locator("#audio-time")).to_have_text(audio)


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
    world.server.call(lambda: [connection.abort() for connection in list(world.server.listener.connections)])
    expect(sound).to_have_attribute("data-state", "failed")
    expect(sound).to_have_attribute("data-ending", "cut")
    expect(page.get_by_role("alert")).to_contain_text("ended before the speech did")
    wav = saved(page, page.get_by_role("button", name="WAV"))
    assert frames_of(wav) == (24_000, 14 * 240)
    page.context.set_offline(True)
    page.get_by_role("button", name="Speak", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")


def test_an_answer_without_a_verdict_is_cut(world: World) -> None:
    body = 'data: {"type":"speech.audio.delta","audio":"AAAAAAA="}\n\n'
    world.page.route("**/v1/audio/speech", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    world.open()
    expect(world.speak()).to_have_attribute("data-ending", "cut")


def test_history_is_kept_until_it_is_deleted_and_disturbs_nobody_who_uses_it(world: World) -> None:
    world.speaker.rate = 22_050
    page = world.open()
    expect(world.speak()).to_have_attribute("data-state", "finished")
    items = page.locator("#history > li")
    items.first.evaluate("(item) => (item.dataset.seen = 'before')")
    for text in ("Another one.", "A third."):
        expect(world.speak(text)).to_have_attribute("data-state", "finished")
    expect(items).to_have_count(3)
    expect(items.last).to_have_attribute("data-seen", "before")  # what has the focus there keeps it
    expect(items.first).to_contain_text("A third.")
    items.first.get_by_role("button", name="Delete").press("Enter")
    expect(items).to_have_count(2)
    expect(page.locator("#history-title")).to_be_focused()
    page.reload()
    expect(items).to_have_count(2)
    expect(items.first).to_contain_text("Another one.")
    expect(items.first).to_contain_text("anna")
    items.first.get_by_role("button", name="Play").click()
    expect(page.locator("#sound")).to_have_attribute("data-state", "finished")
    wav = saved(page, page.get_by_role("button", name="WAV"))
    assert frames_of(wav) == (22_050, 12 * 240)
    assert len(world.speaker.orders) == 3
    items.last.get_by_role("button", name="Use again").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value(TEXT)
    page.get_by_role("button", name="Delete all").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    expect(items).to_have_count(0)
    page.reload()
    expect(page.locator("#count")).not_to_have_text("0 / 20,000")  # the draft is back, so the page is ready
    expect(items).to_have_count(0)


UNFOLD = """for (const each of document.querySelectorAll("details, fieldset, [role=alert]")) {
    each.open = true;
    each.hidden = false;
}"""
SMALL_TARGETS = """[...document.querySelectorAll("button, select, textarea, input")]
    .filter((each) => !each.matches("[type=checkbox], [type=radio], .unseen"))
    .filter((each) => each.checkVisibility() && each.getBoundingClientRect().height < 34)
    .map((each) => each.id)"""


def test_a_voice_comes_is_heard_and_goes(world: World) -> None:
    page = world.open("/voices")
    page.get_by_label("Name", exact=True).fill("berta")
    page.get_by_label("or a file").set_input_files(sound_file())
    page.get_by_label("What it says").fill("One, two, three.")
    page.get_by_label("Description").fill("a friend")
    expect(page.get_by_label("For everyone on this server")).to_be_hidden()  # without keys all of them are
    page.get_by_role("button", name="Add voice").click()
    expect(page.get_by_role("alert")).to_contain_text("its owner has agreed")
    page.get_by_label("its owner has agreed").check()
    page.get_by_role("button", name="Add voice").click()
    row = page.locator("[data-voice=berta]")
    expect(row).to_contain_text("a friend")
    expect(row).to_contain_text("One, two, three.")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    row.get_by_role("link", name="Use berta").click()
    world.expect_voice("berta")
    page.go_back()
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


def test_a_wrong_file_shows_the_servers_words(world: World) -> None:
    page = world.open("/voices")
    page.get_by_label("Name", exact=True).fill("berta")
    page.get_by_label("or a file").set_input_files({"name": "empty.wav", "mimeType": "audio/wav", "buffer": b""})
    page.get_by_label("its owner has agreed").check()
    page.get_by_role("button", name="Add voice").click()
    expect(page.get_by_role("alert")).to_contain_text("The given data is empty (0 bytes)")
    expect(page.get_by_label("Name", exact=True)).to_have_value("berta")


@pytest.fixture
def key(tmp_path: Path) -> tuple[str, KeyRing]:
    """A key, and the ring that knows it."""
    path = tmp_path / "keys.toml"
    path.touch(mode=0o600)
    secret = "vv_" + "a" * 43
    add_key(path, new_entry(secret, "team"))
    return secret, KeyRing(path)


def use_key(dialog: Locator, key: str, remember: bool = False) -> None:
    dialog.get_by_label("Key", exact=True).fill(key)
    dialog.get_by_label("Remember").set_checked(remember)
    dialog.get_by_role("button", name="Use this key").click()


def test_a_key_is_asked_for_and_kept(browser: Browser, key: tuple[str, KeyRing]) -> None:
    secret, ring = key
    with visiting(browser, FakeBackend(), ring) as world:
        page = world.open()
        dialog = page.get_by_role("dialog")
        use_key(dialog, "vv_wrong")
        expect(dialog).to_contain_text("not known here")
        use_key(dialog, secret)
        expect(dialog).to_have_count(0)
        expect(world.speak()).to_have_attribute("data-state", "finished")
        assert world.speaker.orders[0].owner == "team"
        assert page.evaluate("[localStorage.length, sessionStorage.getItem('vivavoce.api-key')]") == [0, secret]
        page.reload()
        world.expect_voice("anna")
        page.get_by_role("button", name="API key").click()
        page.get_by_role("button", name="Forget the key").click()
        page.reload()
        use_key(dialog, secret, remember=True)
        world.expect_voice("anna")
        kept = "[localStorage.getItem('vivavoce.api-key'), sessionStorage.getItem('vivavoce.api-key')]"
        assert page.evaluate(kept) == [secret, None]


def test_a_refusal_of_an_older_key_asks_no_second_time(browser: Browser, key: tuple[str, KeyRing]) -> None:
    secret, ring = key
    with visiting(browser, FakeBackend(), ring) as world:
        page = world.page
        late: list[Route] = []

        def hold_the_second(route: Route) -> None:
            # A changed key makes the page learn again while the request that asked for it is sent again.
            if route.request.headers.get("authorization") == "Bearer vv_wrong":
                late.append(route)
            if len(late) != 2 or route is not late[1]:
                route.continue_()

        page.route("**/v1/models", hold_the_second)
        dialog = world.open().get_by_role("dialog")
        use_key(dialog, "vv_wrong")
        expect(dialog).to_contain_text("not known here")
        use_key(dialog, secret)
        world.expect_voice("anna")
        with page.expect_response(lambda answer: answer.url.endswith("/v1/models") and answer.ok):
            late[1].continue_()
        expect(dialog).to_have_count(0)


def test_status_shows_the_servers_figures(world: World) -> None:
    world.open()
    expect(world.speak()).to_have_attribute("data-state", "finished")
    page = world.open("/status")
    expect(page.locator("#state")).to_contain_text("Model fake.")
    expect(page.locator("[data-tile=requests] .figure")).to_have_text("1")
    expect(page.locator("[data-tile=requests]")).to_contain_text("1 whole")
    expect(page.locator("[data-tile=streams] .figure")).to_have_text("0")
    expect(page.locator("[data-tile=first] .figure")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    expect(page.locator("[data-tile=memory] .figure")).to_have_text("0.00 GiB")
    expect(page.locator("[data-tile=streams] polyline").first).to_be_attached()
    page.route("**/metrics", lambda route: route.fulfill(body="# odd\nvivavoce_streams_active 3\n}{\n"))
    page.reload()  # most figures are missing now
    expect(page.locator("[data-tile=streams] .figure")).to_have_text("3")
    expect(page.locator("[data-tile=memory] .figure")).to_have_text("–")
    expect(page.get_by_role("alert")).to_have_count(0)
    for chart in ("streams", "memory"):
        page.locator(f"[data-tile={chart}] .area").scroll_into_view_if_needed()
    expect(page.locator("[data-tile=streams] polyline").first).to_be_attached()
    width = page.locator("[data-tile=streams] .area").evaluate("(area) => area.clientWidth")
    page.locator("[data-tile=streams] .area").hover(position={"x": width - 2, "y": 9})
    expect(page.locator("[data-tile=streams] .told")).to_contain_text(re.compile(r"\d s ago · speaking 3"))
    expect(page.locator("#engines")).to_be_hidden()
    each = (
        '_up{engine="cuda:0"} 1\n_streams{engine="cuda:0"} 3\n_capacity{engine="cuda:0"} 40\n_up{engine="cuda:1"} 0\n'
    )
    page.route("**/metrics", lambda route: route.fulfill(body=each.replace("_", "vivavoce_engine_")))
    expect(page.locator("#engines")).to_have_text("cuda:0: 3 of 40 streams · cuda:1: not ready")
    page.route("**/metrics", lambda route: route.abort())
    expect(page.locator("#tiles")).to_have_class(re.compile("stale"))
    expect(page.locator("#state")).to_contain_text("old.")


def test_a_keyboard_is_enough(world: World) -> None:
    page = world.open()
    world.expect_voice("anna")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_text("This is a small demo model")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#sound")).to_have_attribute("data-state", "finished")
    for name in ("A welcome", "A story", "Numbers"):
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text(name)
    for name in ("#text-file", "[aria-label='Listen to anna']", "[value=anna]", "#speed", "summary", "#speak"):
        page.keyboard.press("Tab")
        expect(page.locator(name).and_(page.locator(":focus"))).to_have_count(1)
    world.speaker.gate = Gate(pieces=1)
    page.keyboard.press("Enter")
    expect(page.locator("#sound")).to_have_attribute("data-state", "waiting")
    page.keyboard.press("Escape")
    expect(page.locator("#sound")).to_have_attribute("data-state", "idle")
    world.server.call(world.speaker.streams[1].cancelled.wait)


@pytest.mark.parametrize("path", pages.PAGES)
@pytest.mark.parametrize("width", [390, 320])
def test_a_small_screen_needs_no_sideways_scrolling(browser: Browser, path: str, width: int) -> None:
    with visiting(browser, FakeBackend(), viewport={"width": width, "height": 740}) as world:
        page = world.open(path)
        page.evaluate(UNFOLD)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(SMALL_TARGETS) == []
        assert len(page.screenshot()) > 10_000, "an empty page has 2 kB"


AUDIO = """(address) => new Promise((resolve) => {
    const audio = document.createElement("audio");
    audio.addEventListener("ended", () => resolve(audio.currentTime));
    audio.addEventListener("error", () => resolve(audio.error.message));
    audio.src = address;
    document.body.append(audio);
    audio.play().catch((error) => resolve(String(error)));
})"""
"""Play an address to its end: the time that it came to, or why it did not."""


@pytest.mark.parametrize("kind", ["mp3", "wav", "opus", "flac"])
def test_an_address_plays_in_an_audio_element(world: World, kind: str) -> None:
    played = world.open("/voices").evaluate(AUDIO, f"/v1/audio/speech?input={TEXT}&response_format={kind}")
    assert played == pytest.approx(len(TEXT) / 100, abs=0.15)


def test_an_address_does_not_play_on_a_page_of_another_site(world: World) -> None:
    page, address = world.page, f"{world.server.url}/v1/audio/speech?input={TEXT}"
    page.goto(f"http://localhost:{world.server.port}/health/live")  # another site than 127.0.0.1
    assert isinstance(page.evaluate(AUDIO, address), str)
    page.evaluate("(address) => fetch(address, { mode: 'no-cors' })", address)
    assert world.speaker.orders == []


def test_an_address_that_is_typed_plays(world: World) -> None:
    world.page.goto(f"{world.server.url}/v1/audio/speech?input={TEXT}&response_format=wav")
    world.page.wait_for_function("document.querySelector('video, audio').currentTime > 0.1")


def test_the_reference_is_shown_under_its_policy(world: World) -> None:
    page = world.open("/docs")
    expect(page.get_by_role("heading", name="GET /v1/audio/speech", exact=True)).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderTopWidth") == "1px"
