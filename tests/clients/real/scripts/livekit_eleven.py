"""livekit's plugin for ElevenLabs, which knows HTTP, and the WebSocket of several contexts."""

import asyncio
import os
from pathlib import Path

import aiohttp
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import elevenlabs
from telling import TEXT, URL, VOICE, call

SECURE_URL, KEY = os.environ["SECURE_URL"], os.environ["KEY"]
WORDS = TEXT.split()


async def collect(stream: object, file: Path) -> tuple[int, list[str]]:
    """Write a stream's samples; return their rate and the words that have times."""
    data, told, rate = b"", [], 0
    async for piece in stream:
        data, rate = data + bytes(piece.frame.data), piece.frame.sample_rate
        told += [str(word).strip() for word in piece.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
    file.write_bytes(data)
    return rate, told


async def spoken(tts: elevenlabs.TTS, file: Path) -> tuple[int, list[str]]:
    async with tts.stream() as stream:
        for word in WORDS:
            stream.push_text(f"{word} ")
        stream.end_input()
        return await collect(stream, file)


async def main() -> None:
    async with aiohttp.ClientSession() as session:
        usual = elevenlabs.TTS(api_key="none", base_url=f"{URL}/v1", voice_id=VOICE, http_session=session)
        with call("list_voices"):
            assert VOICE in [voice.id for voice in await usual.list_voices()]
        for encoding in ("mp3_22050_32", "pcm_16000", "opus_48000_64"):
            rate = int(encoding.split("_")[1])
            tts = elevenlabs.TTS(
                api_key="none", base_url=f"{URL}/v1", voice_id=VOICE, encoding=encoding, http_session=session
            )
            with call(f"synthesize {encoding}", ".pcm", rate=rate) as file:
                assert (await collect(tts.synthesize(TEXT), file))[0] == rate
            with call(f"stream {encoding}", ".pcm", rate=rate) as file:
                rate_of, words = await spoken(tts, file)
                assert rate_of == rate
                assert words == WORDS, words
            await tts.aclose()
        secure = elevenlabs.TTS(api_key=KEY, base_url=f"{SECURE_URL}/v1", voice_id=VOICE, http_session=session)
        for number in (1, 2):
            with call(f"stream {number} of one connection, wss", ".pcm", rate=22_050) as file:
                await spoken(secure, file)
        with call("an interrupted stream, and the next, wss", ".pcm", rate=22_050) as file:
            stream = secure.stream()
            stream.push_text(f"{TEXT} {TEXT} {TEXT} ")
            stream.flush()
            await stream.__anext__()
            await stream.aclose()
            await spoken(secure, file)
        await secure.aclose()
        await usual.aclose()


asyncio.run(main())
