"""ElevenLabs' package for Python."""

import asyncio
import base64
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from elevenlabs import VoiceSettings
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from telling import TEXT, URL, VOICE, call

client = ElevenLabs(base_url=URL, api_key="none")
RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)


def check_times(alignments: Iterable[object]) -> None:
    """All characters have times, in their order."""
    found = [one for one in alignments if one is not None]
    assert "".join("".join(one.characters) for one in found) == TEXT
    starts = [start for one in found for start in one.character_start_times_seconds]
    assert len(starts) == len(TEXT)
    assert starts == sorted(starts)


with call("voices.get_all, search, get"):
    assert VOICE in [voice.voice_id for voice in client.voices.get_all().voices]
    found = client.voices.search(search=VOICE).voices
    assert found[0].name == VOICE
    assert all(VOICE in voice.description for voice in found)
    assert client.voices.get(VOICE).category == "premade"
with call("text_to_speech.convert, as docs/integrations.md shows it"):
    from elevenlabs.client import ElevenLabs

    audio = client.text_to_speech.convert(VOICE, text="Hello there, all of you.", output_format="mp3_44100_128")
    Path("hello.mp3").write_bytes(b"".join(audio))
    assert Path("hello.mp3").stat().st_size > 1000
    Path("hello.mp3").unlink()
with call("models.list"):
    assert [model.can_do_text_to_speech for model in client.models.list()] == [True]
with call("user.get, subscription.get"):
    assert client.user.get().subscription.character_count == client.user.subscription.get().character_count == 0
for name, rate in (
    ("mp3_44100_128", 44_100),
    ("mp3_22050_32", 22_050),
    ("opus_48000_64", 48_000),
    *((f"pcm_{rate}", rate) for rate in RATES),
    *((f"wav_{rate}", rate) for rate in RATES),
    ("ulaw_8000", 8_000),
    ("alaw_8000", 8_000),
):
    with call(f"text_to_speech.convert {name}", f".{name.partition('_')[0]}", rate=rate) as file:
        file.write_bytes(b"".join(client.text_to_speech.convert(VOICE, text=TEXT, output_format=name)))
with call("text_to_speech.convert, its default format", ".mp3", rate=44_100) as file:
    file.write_bytes(b"".join(client.text_to_speech.convert(VOICE, text=TEXT, model_id="eleven_multilingual_v2")))
with call("text_to_speech.stream", ".mp3", rate=44_100, speed=1.2) as file:
    settings = VoiceSettings(stability=0.4, speed=1.2)
    file.write_bytes(b"".join(client.text_to_speech.stream(VOICE, text=TEXT, voice_settings=settings)))
with call("text_to_speech.convert_with_timestamps", ".mp3", rate=44_100) as file:
    spoken = client.text_to_speech.convert_with_timestamps(VOICE, text=TEXT)
    file.write_bytes(base64.b64decode(spoken.audio_base_64))
    check_times([spoken.alignment])
with call("text_to_speech.stream_with_timestamps", ".pcm", rate=16_000) as file:
    pieces = list(client.text_to_speech.stream_with_timestamps(VOICE, text=TEXT, output_format="pcm_16000"))
    file.write_bytes(b"".join(base64.b64decode(piece.audio_base_64) for piece in pieces))
    check_times(piece.alignment for piece in pieces)


async def one() -> bytes:
    asynchronous = AsyncElevenLabs(base_url=URL, api_key="none")
    return b"".join([piece async for piece in asynchronous.text_to_speech.convert(VOICE, text=TEXT)])


with call("AsyncElevenLabs text_to_speech.convert", ".mp3", rate=44_100) as file:
    file.write_bytes(asyncio.run(one()))


def words() -> Iterator[str]:
    for word in TEXT.split():
        yield f"{word} "


secure = ElevenLabs(base_url=os.environ["SECURE_URL"], api_key=os.environ["KEY"])
for name, rate in (("mp3_44100_128", 44_100), ("pcm_16000", 16_000), ("ulaw_8000", 8_000), ("opus_48000_64", 48_000)):
    with call(f"text_to_speech.convert_realtime {name}, wss", f".{name.partition('_')[0]}", rate=rate) as file:
        file.write_bytes(b"".join(secure.text_to_speech.convert_realtime(VOICE, text=words(), output_format=name)))
