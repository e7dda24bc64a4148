"""A visitor with a real browser at a real server whose speaker can be held in the middle of a sentence."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile
from playwright.sync_api import Browser, ConsoleMessage, FilePayload, Locator, Page, expect, sync_playwright

from tests.server.fake_backend import RATE, FakeBackend, tone
from tests.server.http.serving import Served, make_state, serving
from vivavoce.server.http.app import build_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.keys import KeyRing

expect.set_options(timeout=30_000)  # a busy machine takes longer than the usual 5 s
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TEXT = "Good morning. How are you today?"
_NOTE_STATES = """
    window.states = [];
    new MutationObserver((changes) => {
        for (const { target } of changes)
            if (target.dataset.state !== window.states.at(-1)) window.states.push(target.dataset.state);
    }).observe(document, { subtree: true, attributeFilter: ["data-state"] });
"""


@dataclass
class World:
    """A page, and the server behind it."""

    page: Page
    server: Served
    speaker: FakeBackend

    def open(self, path: str = "/") -> Page:
        self.page.goto(self.server.url + path)
        return self.page

    def speak(self, text: str = TEXT) -> Locator:
        """Type the text and press the button; the part of the page whose state follows."""
        self.page.get_by_label("Text", exact=True).fill(text)
        self.expect_voice("anna")
        self.page.get_by_role("button", name="Speak", exact=True).click()
        return self.page.locator("#sound")

    def expect_voice(self, name: str) -> None:
        expect(self.page.get_by_role("radio", name=name)).to_be_checked()

    @property
    def states(self) -> list[str]:
        """All play states that there were, the shortest too, without repetitions."""
        return self.page.evaluate("window.states")


@contextmanager
def visiting(
    browser: Browser,
    speaker: FakeBackend,
    keys: KeyRing | None = None,
    make: Callable[[], AppState] | None = None,
    **options: Any,
) -> Iterator[World]:
    """A fresh visitor at a fresh server; what the page complains of at the console fails the test.

    make: makes another state for the server than `make_state` does.
    """
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # Chromium itself reports answers such as 401, which the pages are made to meet.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    with serving(build_app, make or (lambda: make_state(speaker, keys=keys))) as server:
        context = browser.new_context(**options)
        page = context.new_page()
        page.add_init_script(_NOTE_STATES)
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield World(page, server, speaker)
        context.close()
    assert complaints == []


def sound_file() -> FilePayload:
    """A second of sound, as a visitor chooses it."""
    data = io.BytesIO()
    soundfile.write(data, tone(100, 1), RATE, format="WAV")
    return {"name": "anna.wav", "mimeType": "audio/wav", "buffer": data.getvalue()}


def saved(page: Page, press: Locator) -> bytes:
    """The file that a button gives."""
    with page.expect_download() as download:
        press.click()
    return Path(download.value.path()).read_bytes()


def frames_of(wav: bytes) -> tuple[int, int]:
    """Samples per second, and samples."""
    info = soundfile.info(io.BytesIO(wav))
    return info.samplerate, info.frames


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium without a window, with a microphone that beeps."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
        )
        yield browser
        browser.close()
