"""Chromium: an audio element that plays an address, and a page's fetch."""

import base64
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright
from telling import TEXT, URL, VOICE, call

PLAYED = """async address => {
  const audio = new Audio(address);
  const ended = new Promise((done, failed) => {
    audio.onended = () => done(audio.currentTime);
    audio.onerror = () => failed(new Error(audio.error.message));
  });
  await audio.play();
  return await ended;
}"""
FETCHED = """async fields => {
  const headers = { "content-type": "application/json" };
  const answer = await fetch("/v1/audio/speech", { method: "POST", headers, body: JSON.stringify(fields) });
  if (!answer.ok) throw new Error(await answer.text());
  return btoa(String.fromCharCode(...new Uint8Array(await answer.arrayBuffer())));
}"""
FLAGS = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required", "--mute-audio"]

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
    page = browser.new_page()
    page.goto(URL)
    for kind in ("mp3", "opus"):
        with call(f"audio element, {kind}"):
            asked = urlencode({"input": TEXT, "voice": VOICE, "response_format": kind})
            seconds = page.evaluate(PLAYED, f"{URL}/v1/audio/speech?{asked}")
            assert 1.5 < seconds < 5, seconds
    with call("fetch", ".mp3", rate=24_000) as file:
        file.write_bytes(base64.b64decode(page.evaluate(FETCHED, {"input": TEXT, "voice": VOICE})))
    browser.close()
