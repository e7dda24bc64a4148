"""pipecat's service for OpenAI, in a pipeline; it knows OpenAI's names of voices only."""

import asyncio

from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test
from telling import TEXT, URL, call


async def speak(**settings: object) -> bytes:
    service = OpenAITTSService(api_key="none", base_url=f"{URL}/v1", **settings)
    down, up = await run_test(service, frames_to_send=[TTSSpeakFrame(TEXT)])
    assert not [frame for frame in (*down, *up) if isinstance(frame, ErrorFrame)], up
    return b"".join(frame.audio for frame in down if isinstance(frame, TTSAudioRawFrame))


with call("OpenAITTSService, its defaults", ".pcm", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak()))
with call("OpenAITTSService, voice nova", ".pcm", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak(settings=OpenAITTSService.Settings(voice="nova"))))
