"""Semantic Kernel's text-to-audio service, which knows OpenAI's names of voices only."""

import asyncio

from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAITextToAudio, OpenAITextToAudioExecutionSettings
from telling import TEXT, URL, call


async def speak(**settings: object) -> bytes:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as client:
        service = OpenAITextToAudio(ai_model_id="tts-1", async_client=client)
        return (await service.get_audio_content(TEXT, OpenAITextToAudioExecutionSettings(**settings))).data


with call("get_audio_content, its defaults", ".mp3", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak()))
with call("get_audio_content wav, voice nova", ".wav", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak(voice="nova", response_format="wav")))
