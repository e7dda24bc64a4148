"""livekit's plugin for OpenAI: whole texts, and words that arrive."""

import asyncio

from livekit.agents.tokenize.basic import SentenceTokenizer
from livekit.agents.tts import StreamAdapter
from livekit.plugins.openai import TTS
from telling import TEXT, URL, VOICE, call


def made(**settings: object) -> TTS:
    tts = TTS(base_url=f"{URL}/v1", api_key="none", **settings)
    return tts


async def speak(tts: TTS) -> bytes:
    async with tts.synthesize(TEXT) as stream:
        return b"".join([bytes(event.frame.data) async for event in stream])


async def speak_words(tts: TTS) -> bytes:
    async with StreamAdapter(tts=tts, sentence_tokenizer=SentenceTokenizer()).stream() as stream:
        for word in TEXT.split():
            stream.push_text(f"{word} ")
        stream.end_input()
        return b"".join([bytes(event.frame.data) async for event in stream])


with call("synthesize, its defaults", ".pcm", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak(made())))
with call("synthesize, tts-1 as events, wav", ".pcm", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak(made(model="tts-1", voice=VOICE, response_format="wav"))))
with call("StreamAdapter, words that arrive", ".pcm", rate=24_000) as file:
    file.write_bytes(asyncio.run(speak_words(made(voice=VOICE))))
