"""litellm, which sends each request where its model's prefix says."""

import asyncio

import litellm
from telling import TEXT, URL, VOICE, call

ASKED = {"model": "openai/tts-1", "input": TEXT, "api_base": f"{URL}/v1", "api_key": "none"}

for kind in ("mp3", "wav"):
    with call(f"speech {kind}", f".{kind}", rate=24_000) as file:
        litellm.speech(**ASKED, voice=VOICE, response_format=kind).stream_to_file(file)
with call("aspeech, voice alloy", ".mp3", rate=24_000) as file:
    file.write_bytes(asyncio.run(litellm.aspeech(**ASKED, voice="alloy")).content)
