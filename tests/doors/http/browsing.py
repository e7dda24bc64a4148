"""A real browser at a real server whose speaker can be held in the middle of a sentence."""

from __future__ import annotations

import asyncio
import io
import math
import shutil
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, FilePayload, Locator, Page, expect, sync_playwright
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.serving import Served, make_desk, serving
from vivavoce.doors.http.app import build_app
from vivavoce.doors.http.connections import ABORT
from vivavoce.doors.http.desk import Desk
from vivavoce.service.operations.keys import KeyRing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TEXT = "Good morning. How are you today?"
_NOTE_STATES = """
    window.states = [];
    new MutationObserver((changes) => {
        for (const { target } of changes)
            if (target.dataset.state !== window.states.at(-1)) window.states.push(target.dataset.state);
    }).observe(document, { subtree: true, attributeFilter: ["data-state"] });
"""


class Gate(asyncio.Event):
    """Lets some pieces of audio through, then holds the others until it is set."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self._left = pieces

    async def wait(self) -> Literal[True]:
        self._left -= 1
        return True if self._left >= 0 else await super().wait()


@dataclass
class World:
    """A page, and the server behind it."""

    page: Page
    server: Served
    speaker: FakeSpeaker
    drops: list[Callable[[], None]]
    """Break the connections of the requests for speech, in their order."""

    def open(self, path: str = "/") -> Page:
        self.page.goto(self.server.url + path)
        return self.page

    def speak(self, text: str = TEXT) -> Locator:
        """Type the text and press the button; the part of the page whose state follows."""
        self.page.get_by_label("Text", exact=True).fill(text)
        expect(self.page.get_by_label("Voice", exact=True)).to_have_value("anna")
        self.page.get_by_role("button", name="Speak", exact=True).click()
        return self.page.locator("#sound")

    @property
    def states(self) -> list[str]:
        """All play states that there were, the shortest too, without repetitions."""
        return self.page.evaluate("window.states")


@contextmanager
def launched() -> Iterator[Browser]:
    """Chromium without a window, with a microphone that beeps."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
        )
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, speaker: FakeSpeaker, keys: KeyRing | None = None, **options: Any) -> Iterator[World]:
    """A fresh visitor at a fresh server; what the page complains of at the console fails the test."""
    complaints: list[str] = []
    drops: list[Callable[[], None]] = []

    def note(message: ConsoleMessage) -> None:
        # Chromium itself reports answers such as 401, which the pages are made to meet.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    def build(desk: Desk) -> ASGIApp:
        app = build_app(desk)

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope.get("path") == "/v1/audio/speech":
                drops.append(scope["extensions"][ABORT])
            await app(scope, receive, send)

        return watched

    with serving(build, lambda: make_desk(speaker, keys=keys)) as server:
        context = browser.new_context(**options)
        page = context.new_page()
        page.add_init_script(_NOTE_STATES)
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield World(page, server, speaker, drops)
        context.close()
    assert complaints == []


def recording(seconds: float = 1.0) -> FilePayload:
    """A file as a visitor chooses it."""
    tone = b"".join(
        int(8000 * math.sin(2 * math.pi * 220 * n / 8000)).to_bytes(2, "little", signed=True)
        for n in range(int(8000 * seconds))
    )
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(tone)
    return {"name": "anna.wav", "mimeType": "audio/wav", "buffer": data.getvalue()}


def saved(page: Page, press: Locator) -> bytes:
    """The file that a button gives."""
    with page.expect_download() as download:
        press.click()
    return Path(download.value.path()).read_bytes()


def frames_of(wav: bytes) -> tuple[int, int]:
    """Samples per second, and samples."""
    with wave.open(io.BytesIO(wav)) as file:
        return file.getframerate(), file.getnframes()


def colours(page: Page) -> int:
    """How many colours the picture has."""
    return page.evaluate(
        """() => {
            const canvas = document.getElementById("picture");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
