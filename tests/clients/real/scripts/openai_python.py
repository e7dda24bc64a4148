"""OpenAI's package for Python."""

import asyncio
import base64
import json

import openai
from telling import TEXT, URL, VOICE, call

ASKED = {"model": "tts-1", "voice": VOICE, "input": TEXT}
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")

with call("models.list"):
    assert [model.id for model in client.models.list()]
for kind in ("mp3", "opus", "aac", "flac", "wav", "pcm"):
    with call(f"speech.create {kind}", f".{kind}", rate=48_000 if kind == "opus" else 24_000) as file:
        client.audio.speech.create(**ASKED, response_format=kind).write_to_file(file)
with (
    call("speech.with_streaming_response mp3", ".mp3", rate=24_000) as file,
    client.audio.speech.with_streaming_response.create(**ASKED) as answer,
):
    answer.stream_to_file(file)
with (
    call("speech.with_streaming_response stream_format=sse", ".pcm", rate=24_000) as file,
    client.audio.speech.with_streaming_response.create(**ASKED, response_format="pcm", stream_format="sse") as answer,
):
    events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert events[-1]["type"] == "speech.audio.done"
    file.write_bytes(b"".join(base64.b64decode(event["audio"]) for event in events if "audio" in event))
with call("speech.create speed=2", ".wav", rate=24_000, speed=2.0) as file:
    client.audio.speech.create(**ASKED, response_format="wav", speed=2.0).write_to_file(file)


async def one() -> bytes:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as asynchronous:
        return (await asynchronous.audio.speech.create(**ASKED, response_format="wav")).content


with call("AsyncOpenAI speech.create", ".wav", rate=24_000) as file:
    file.write_bytes(asyncio.run(one()))
