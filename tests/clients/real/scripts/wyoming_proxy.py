"""wyoming-openai, which stands between Home Assistant and OpenAI's routes."""

import asyncio
import socket
import subprocess
import sys
import time
import wave

from telling import TEXT, URL, VOICE, call
from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeVoice

with socket.create_server(("127.0.0.1", 0)) as free:
    PORT = free.getsockname()[1]


async def events(sent, until):
    async with AsyncTcpClient("127.0.0.1", PORT, read_timeout=60) as client:
        await client.write_event(sent.event())
        received = []
        while not received or not until.is_type(received[-1].type):
            event = await client.read_event()
            assert event is not None, "the connection has ended"
            received.append(event)
        return received


def reachable() -> None:
    for _ in range(300):
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", PORT)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError("wyoming_openai does not listen")


asked = ("--uri", f"tcp://127.0.0.1:{PORT}", "--tts-openai-url", f"{URL}/v1", "--tts-openai-key", "none")
models = ("--languages", "en", "--tts-models", "tts-1", "--tts-voices", "alloy", VOICE)
with subprocess.Popen([sys.executable, "-m", "wyoming_openai", *asked, *models], stdout=sys.stderr) as bridge:
    try:
        with call("describe"):
            reachable()
            names = [one.name for one in Info.from_event(asyncio.run(events(Describe(), Info))[-1]).tts[0].voices]
            assert names
        for voice in ("alloy", VOICE):
            with call(f"synthesize, voice {voice}", ".wav", rate=24_000) as file, wave.open(str(file), "wb") as audio:
                received = asyncio.run(events(Synthesize(TEXT, SynthesizeVoice(voice)), AudioStop))
                chunks = [AudioChunk.from_event(one) for one in received if AudioChunk.is_type(one.type)]
                audio.setparams((chunks[0].channels, chunks[0].width, chunks[0].rate, 0, "NONE", ""))
                audio.writeframes(b"".join(chunk.audio for chunk in chunks))
    finally:
        bridge.terminate()
