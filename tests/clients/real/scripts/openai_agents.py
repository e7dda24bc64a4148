"""OpenAI's agents: the voice pipeline's text-to-speech model, with its default settings and prompt."""

import asyncio

from agents.voice import TTSModelSettings
from agents.voice.models.openai_tts import OpenAITTSModel
from openai import AsyncOpenAI
from telling import TEXT, URL, VOICE, call


async def speak(settings: TTSModelSettings) -> bytes:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as client:
        pieces = [piece async for piece in OpenAITTSModel("gpt-4o-mini-tts", client).run(TEXT, settings)]
    return b"".join(pieces)


with call("OpenAITTSModel, its defaults", ".pcm", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak(TTSModelSettings())))
with call("OpenAITTSModel, a voice of the model", ".pcm", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak(TTSModelSettings(voice=VOICE))))
