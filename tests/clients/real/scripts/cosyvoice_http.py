"""CosyVoice's HTTP service as its own `client.py` asks it, with the same library: a form in the body of a GET."""

from __future__ import annotations

import io
import os

import requests
from telling import TEXT, URL, VOICE, call

SERVICE = os.environ["COSYVOICE_URL"]
PROMPT = requests.get(
    f"{URL}/v1/audio/speech", params={"input": TEXT, "voice": VOICE, "response_format": "wav"}, timeout=60
).content
"""A recording, and TEXT is what it says."""


def ask(route: str, recording: bool, **fields: str) -> bytes:
    """The samples of an answer, taken as they come."""
    files = [("prompt_wav", ("prompt_wav", io.BytesIO(PROMPT), "application/octet-stream"))] if recording else None
    form = {"tts_text": TEXT, **fields}
    answer = requests.request("GET", f"{SERVICE}/inference_{route}", data=form, files=files, stream=True, timeout=60)
    assert answer.status_code == 200, answer.text
    return b"".join(answer.iter_content(chunk_size=16_000))


with call("sft", ".pcm", rate=24_000) as file:
    file.write_bytes(ask("sft", False, spk_id=VOICE))

with call("zero_shot", ".pcm", rate=24_000) as file:
    file.write_bytes(ask("zero_shot", True, prompt_text=TEXT))

with call("cross_lingual", ".pcm", rate=24_000) as file:
    file.write_bytes(ask("cross_lingual", True))
