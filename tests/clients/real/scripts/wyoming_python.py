"""The package by which Home Assistant speaks Wyoming."""

import asyncio
import os
import wave
from pathlib import Path

from telling import TEXT, VOICE, call
from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice

HOST, _, PORT = os.environ["WYOMING"].rpartition(":")
SPEAKER = SynthesizeVoice(name=VOICE)


async def events(*sent, until):
    async with AsyncTcpClient(HOST, int(PORT), read_timeout=120) as client:
        for one in sent:
            await client.write_event(one.event())
        received = []
        while not received or not until.is_type(received[-1].type):
            event = await client.read_event()
            assert event is not None, f"no {until.__name__} after {[one.type for one in received]}"
            received.append(event)
        return received


def speak(file: Path, *sent, until):
    chunks = [
        AudioChunk.from_event(one) for one in asyncio.run(events(*sent, until=until)) if one.type == "audio-chunk"
    ]
    with wave.open(str(file), "wb") as audio:
        audio.setnchannels(chunks[0].channels)
        audio.setsampwidth(chunks[0].width)
        audio.setframerate(chunks[0].rate)
        audio.writeframes(b"".join(chunk.audio for chunk in chunks))


with call("describe"):
    (program,) = Info.from_event(asyncio.run(events(Describe(), until=Info))[-1]).tts
    assert VOICE in [voice.name for voice in program.voices]
    assert program.voices[0].languages == ["en"]
    assert program.supports_synthesize_streaming
with call("synthesize", ".wav", rate=24_000) as file:
    speak(file, Synthesize(TEXT, SPEAKER), until=AudioStop)
with call("synthesize-start, -chunk, -stop", ".wav", rate=24_000) as file:
    words = [SynthesizeChunk(f"{word} ") for word in TEXT.split()]
    speak(file, SynthesizeStart(SPEAKER), *words, Synthesize(TEXT), SynthesizeStop(), until=SynthesizeStopped)
with call("synthesize with an unknown voice"):
    unknown = Synthesize(TEXT, SynthesizeVoice(name="nobody"))
    assert Error.from_event(asyncio.run(events(unknown, until=Error))[-1]).code == "voice_not_found"
