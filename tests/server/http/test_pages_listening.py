"""What listeners do on the pages, in a real browser: replace, wait, seek, save, read in Chinese."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pytest
import soundfile
from playwright.sync_api import Browser, Page, expect

from tests.server.fake_backend import FakeBackend, FakeStream, Gate
from tests.server.http.browsing import CHROMIUM, TEXT, World, saved, visiting
from vivavoce.errors import Overloaded
from vivavoce.frontend.speech import Mark, SpeechRequest
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.frontend.subtitles import to_srt, to_vtt
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.server.http import pages

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH"),
]


@dataclass
class NarrowSpeaker(FakeBackend):
    """Has room for one, and counts one that was given up a little longer, as engines do."""

    freed: set[int] = field(default_factory=set)
    refused: int = 0

    async def speak(self, order: SpeechRequest) -> FakeStream:
        for stream in self.streams:
            if stream.cancelled.is_set() and id(stream) not in self.freed:
                asyncio.get_running_loop().call_later(0.2, self.freed.add, id(stream))
            elif stream.cancelled.is_set() or stream.verdict is not None:
                continue
            self.refused += 1
            raise Overloaded("engine: is full", 30.0)
        return await super().speak(order)

    async def voices(self, owner: str) -> list[VoiceSummary]:
        return [*await super().voices(owner), VoiceSummary("berta", "built_in", True, "another tone")]


def test_speak_while_it_speaks_takes_the_place_of_the_first(browser: Browser) -> None:
    speaker = NarrowSpeaker(gate=Gate(pieces=2))
    with visiting(browser, speaker) as world:
        world.open()
        expect(world.speak()).to_have_attribute("data-state", "playing")
        speaker.gate = None
        expect(world.speak("The second.")).to_have_attribute("data-state", "finished")
        assert [order.text for order in speaker.orders] == [TEXT, "The second."]
        assert speaker.refused > 0, "the server was still busy with the first"
        expect(world.page.get_by_role("alert")).to_have_count(0)


def test_listening_to_a_second_voice_takes_the_place_of_the_first(browser: Browser) -> None:
    speaker = NarrowSpeaker(gate=Gate(pieces=2))
    with visiting(browser, speaker) as world:
        page = world.open("/voices")
        page.get_by_role("button", name="Listen to anna").click()
        expect(page.locator("[data-voice=anna]")).to_have_attribute("data-state", "playing")
        speaker.gate = None
        page.get_by_role("button", name="Listen to berta").click()
        expect(page.locator("[data-voice=anna]")).to_have_attribute("data-state", "idle")
        expect(page.locator("[data-voice=berta]")).to_have_attribute("data-state", "finished")
        assert [order.voice for order in speaker.orders] == ["anna", "berta"]


def test_a_busy_server_is_asked_again_when_it_says_so(browser: Browser) -> None:
    speaker = FakeBackend(refuses_with=Overloaded("engine: is full", 2.0))
    with visiting(browser, speaker) as world:
        page = world.open()
        sound = world.speak()
        expect(page.get_by_text("The server is busy; the page asks again.")).to_be_visible()
        expect(page.locator("#countdown")).to_have_text(re.compile(r"Next try in [12] s\."))
        speaker.refuses_with = None
        expect(sound).to_have_attribute("data-state", "finished")
        speaker.refuses_with = Overloaded("engine: is full", 60.0)
        world.speak()
        expect(page.locator("#countdown")).to_have_text(re.compile(r"Next try in (60|59) s\."))
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(sound).to_have_attribute("data-state", "idle")


class SlowGate(Gate):
    """Gives a piece of 0.1 s every 0.15 s, the first one late: a machine slower than real time."""

    has_begun = False

    async def wait(self) -> Literal[True]:
        await asyncio.sleep(0.15 if self.has_begun else 1.0)
        self.has_begun = True
        return True


def test_a_slow_server_is_heard_without_gaps(browser: Browser) -> None:
    with visiting(browser, FakeBackend(gate=SlowGate(0))) as world:
        page = world.open()
        sound = world.speak("A text that takes a while. " * 5)
        expect(page.get_by_text("This server makes sound more slowly than it plays")).to_be_visible()
        expect(page.get_by_role("button", name="Play now")).to_be_visible()
        expect(sound).to_have_attribute("data-state", "finished", timeout=30_000)
        assert world.states == ["waiting", "playing", "finished"]
        expect(page.locator("#gaps")).to_have_text("0")


def test_who_does_not_want_to_wait_hears_it_now(browser: Browser) -> None:
    with visiting(browser, FakeBackend(gate=SlowGate(0))) as world:
        page = world.open()
        sound = world.speak("A text that takes a while. " * 5)
        page.get_by_role("button", name="Play now").click()
        expect(sound).to_have_attribute("data-state", "playing")
        assert world.speaker.streams[0].verdict is None


def test_the_position_moves_by_keys_and_clicks(world: World) -> None:
    page = world.open()
    world.speak("A text of some length, so that there is room to move. " * 12)
    expect(page.locator("#audio-time")).to_have_text("6.48 s")
    page.get_by_role("button", name="Pause").click()
    seek = page.get_by_role("slider", name="Position")
    seek.press("Home")
    seek.press("ArrowRight")
    seek.press("ArrowRight")
    expect(page.locator("#elapsed")).to_have_text("0:04")
    expect(page.locator("#total")).to_have_text("0:06")
    expect(seek).to_have_attribute("aria-valuetext", "0:04 of 0:06")
    box = page.locator("#picture").bounding_box()
    assert box is not None
    page.locator("#picture").click(position={"x": box["width"] / 2, "y": 20})
    expect(page.locator("#elapsed")).to_have_text("0:03")
    page.get_by_role("slider", name="Volume").fill("0.25")
    assert page.evaluate("localStorage.getItem('vivavoce.volume')") == "0.25"
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#sound")).to_have_attribute("data-state", "finished")
    assert len(world.speaker.orders) == 1


def test_samples_files_and_drops_fill_the_text(world: World) -> None:
    page = world.open()
    page.get_by_role("button", name="A welcome").click()
    expect(page.locator("#sound")).to_have_attribute("data-state", "finished", timeout=15_000)
    text = world.speaker.orders[0].text
    assert text is not None
    assert text.startswith("Welcome!")
    story = {"name": "story.txt", "mimeType": "text/plain", "buffer": "Übermut tut gut.".encode()}
    page.get_by_label("Open a text file").set_input_files([story])
    expect(page.get_by_label("Text", exact=True)).to_have_value("Übermut tut gut.")
    page.get_by_label("Open a text file").set_input_files([{**story, "buffer": b"\xff\xfe\x00"}])
    expect(page.get_by_role("alert")).to_contain_text("“story.txt” is not a text")
    page.evaluate("""() => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["Dropped."], "dropped.txt"));
        document.getElementById("text").dispatchEvent(new DragEvent("drop", { bubbles: true, dataTransfer }));
    }""")
    expect(page.get_by_label("Text", exact=True)).to_have_value("Dropped.")


def test_what_was_spoken_is_saved_in_all_formats_without_speaking_again(world: World) -> None:
    page = world.open()
    sentences = ["One & two are <three>.", f" {'A sentence of many words, too long for one subtitle, ' * 3}ends."]
    expect(world.speak("".join(sentences))).to_have_attribute("data-state", "finished", timeout=15_000)
    samples, rate = soundfile.read(io.BytesIO(saved(page, page.get_by_role("button", name="MP3"))))
    spoken_s = len("".join(sentences)) / 100
    assert rate == 24_000
    assert 0 <= len(samples) / rate - spoken_s < 0.2
    marks, at = [], 0.0
    for sentence in sentences:
        end = at + len(sentence) / 100
        marks.append(Mark(sentence, 0, 0, at, end))
        at = end
    for name, written in (("SRT", to_srt(marks)), ("VTT", to_vtt(marks))):
        text = saved(page, page.get_by_role("button", name=name)).decode()
        assert re.findall(r"[^\s\d:.,>-]+", text) == re.findall(r"[^\s\d:.,>-]+", written), "the same words"
        assert text.splitlines()[0] == written.splitlines()[0]
        assert text.count(" --> ") >= 3, "the long sentence is parted"
    assert len(world.speaker.orders) == 1


def test_the_wish_as_a_program_runs(world: World, tmp_path: Path) -> None:
    page = world.open()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=world.server.url)
    text = 'It\'s "quoted" & $HOME, 你好 \\ 🙂.'
    expect(world.speak(text)).to_have_attribute("data-state", "finished")
    page.get_by_text("For developers").click()
    for name, command in (("curl", ["sh", "-c"]), ("Python", [sys.executable, "-c"])):
        page.get_by_role("button", name=f"Copy as {name}").click()
        expect(page.get_by_text("Copied.")).to_be_visible()
        code = page.evaluate("navigator.clipboard.readText()")
        subprocess.run([*command, code], cwd=tmp_path, check=True, timeout=60)
        assert (tmp_path / "speech.mp3").stat().st_size > 500
        (tmp_path / "speech.mp3").unlink()
        # The page alone marks the word that is heard.
        assert world.speaker.orders[-1] == replace(world.speaker.orders[0], word_times=False)


LATIN = """() => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) found.push(walker.currentNode.data);
    for (const name of ["aria-label", "placeholder", "title", "label"])
        for (const each of document.body.querySelectorAll(`[${name}]`)) found.push(each.getAttribute(name));
    return found.map((text) => text.replace(/[{][^}]*[}]/g, "")).filter((text) => /[A-Za-z]{2,}/.test(text));
}"""
"""All texts with words of Latin letters."""
NAMES = re.compile(
    r"vivavoce( [-\w. ]+)?|CosyVoice2?|WAV|MP3|SRT|VTT|curl|Python|API|JavaScript|Ctrl|Enter|Esc|English"
    r"|anna|a tone|fake|GiB|https|ms|--jobs|EPUB|HTML|Markdown|Opus|M4B"
)


@pytest.mark.parametrize("path", pages.PAGES)
def test_a_chinese_reader_finds_no_english(browser: Browser, path: str) -> None:
    with visiting(browser, FakeBackend(), locale="zh-CN") as world:
        page = world.open(path)
        if path == "/":
            page.get_by_label("文字", exact=True).fill(TEXT)
            expect(page.get_by_role("radio", name="anna")).to_be_checked()
            page.get_by_role("button", name="朗读", exact=True).click()
            expect(page.locator("#sound")).to_have_attribute("data-state", "finished")
            page.get_by_label("文字", exact=True).fill("")
        elif path == "/books":
            expect(page.locator("#trouble")).to_contain_text("--jobs")  # this server takes none
        else:
            expect(page.locator("#state")).to_have_text(re.compile("1 个声音|运行中"))
        left = [re.sub(NAMES, "", text) for text in page.evaluate(LATIN) if "<p" not in text]  # for who has no scripts
        assert [text for text in left if re.search("[A-Za-z]{2,}", text) and TEXT not in text] == []
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        page.get_by_role("button", name="English").click()
        expect(page.get_by_role("link", name="Status")).to_be_visible()
        page.reload()
        expect(page.get_by_role("link", name="Status")).to_be_visible()


@dataclass
class PlainSpeaker(FakeBackend):
    @property
    def about(self) -> ModelInfo:
        return ModelInfo("plain", "a tone", 24_000, demo=False, instructions=False)


def test_the_page_offers_what_its_model_can(browser: Browser) -> None:
    with visiting(browser, PlainSpeaker()) as world:
        page = world.open()
        world.expect_voice("anna")
        page.get_by_text("Advanced").click()
        expect(page.get_by_label("Take")).to_be_visible()
        expect(page.get_by_label("Instructions")).to_be_hidden()
        expect(page.locator("#demo")).to_be_hidden()
        expect(page.get_by_role("button", name="中文").first).to_be_visible()


def violations(page: Page) -> list[Any]:
    """What axe-core finds against WCAG and good practice, with the rule for labels that it calls experimental."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    found = page.evaluate("axe.run({ rules: { 'label-content-name-mismatch': { enabled: true } } })")["violations"]
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing(browser: Browser, scheme: Any, width: int) -> None:
    size: Any = {"width": width, "height": 800}
    with visiting(browser, FakeBackend(), color_scheme=scheme, viewport=size) as world:
        page = world.open()
        expect(world.speak()).to_have_attribute("data-state", "finished")
        page.get_by_role("radio", name="Your own recording").check()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert violations(page) == []
        world.open("/voices")
        expect(page.get_by_role("button", name="Listen to anna")).to_be_visible()
        assert violations(page) == []
        world.open("/status")
        expect(page.locator("#state")).to_contain_text("Running.")
        assert violations(page) == []
