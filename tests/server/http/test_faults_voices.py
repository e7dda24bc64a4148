"""Recordings that unpack to more than they should, and names that point elsewhere."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import av
import numpy as np
import pytest
import soundfile
import torch

from tests.server.fake_backend import FakeStream
from tests.server.http.faulty_clients import (
    END,
    FORM,
    Answer,
    Client,
    PatientSpeaker,
    memory_bounded,
    part,
    speech,
    state_of,
    undisturbed,
)
from tests.server.http.serving import Served, serving
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S, Audio, check_reference
from vivavoce.frontend.speech import Recording, SpeechRequest
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.frontend.voices.registry import VoiceRegistry
from vivavoce.frontend.voices.voice import Voice
from vivavoce.server.http.app import build_app

MODEL = "0123456789abcdef"
MIB = 1 << 20
HOUR = 3_600


class Front:
    """A model's front end, up to where its networks would begin."""

    def extract(self, source: AudioSource, transcript: str = "") -> Voice:
        assert not isinstance(source, Audio)
        check_reference(decode_audio(source, max_seconds=MAX_REFERENCE_S), field="reference audio")
        return Voice(embedding=torch.zeros(192), fingerprint=MODEL, transcript=transcript)


class KeepingSpeaker(PatientSpeaker):
    """Decodes recordings and keeps voices in a folder, as an engine does."""

    library: VoiceRegistry

    async def speak(self, order: SpeechRequest) -> FakeStream:
        if order.voice is not None:
            await asyncio.to_thread(self.library.requested, order.voice, order.owner)
        return await super().speak(replace(order, voice=None))

    async def add_voice(
        self,
        owner: str,
        name: str,
        recording: Recording,
        *,
        description: str = "",
        replace: bool = False,
        consent: Consent | None = None,
        adapter: str = "",
    ) -> VoiceSummary:
        def add() -> VoiceSummary:
            self.library.check_free(owner, name, replace=replace)
            return self.library.add(owner, self.library.requested(recording, owner).named(name), replace=replace)

        return await asyncio.to_thread(add)

    async def remove_voice(self, owner: str, name: str) -> None:
        await asyncio.to_thread(self.library.remove, owner, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of voices; beside it lie files that are none of anybody's business."""
    outside = tmp_path_factory.mktemp("machine")
    for name in ("secret", "secret.voice", "etc.safetensors"):
        (outside / name).write_text("not to be touched")
    return outside / "voices"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    def speaker() -> KeepingSpeaker:
        made = KeepingSpeaker()
        made.library = VoiceRegistry(Front(), FolderStore(folder), {}, MODEL)
        return made

    with serving(build_app, state_of(speaker)) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with undisturbed(server), Client(server) as made:
        yield made


def add(client: Client, name: str, content: bytes) -> Answer:
    form = part("name", name.encode("utf-8", "surrogatepass")) + part("file", content, file=True) + END
    return client.exchange("/v1/audio/voices", form, content_type=FORM)


def encoded(
    seconds: int, rate: int, container: str, subtype: str | None = None, *, channels: int = 1, loudness: int = 1
) -> bytes:
    """A second of noise, again and again; libsndfile writes it."""
    second = np.random.default_rng(1).integers(-loudness, loudness, (rate, channels)).astype(np.int16)
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, channels, subtype, format=container) as file:
        for _ in range(seconds):
            file.write(second)
    return buffer.getvalue()


def encoded_by_ffmpeg(seconds: int, container: str, codec: str) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=48_000, layout="mono")
        stream.bit_rate = 8_000
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 48_000
        for second in range(seconds):
            frame.pts = second * 48_000
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def flac_that_promises(seconds: int, content: bytes) -> bytes:
    """The same sound under a header that says it were so many seconds (0: unknown), in the last 36 of its 64 bits."""
    packed = int.from_bytes(content[18:26], "big") >> 36 << 36 | seconds * 8_000
    return content[:18] + packed.to_bytes(8, "big") + content[26:]


def wav_that_promises(size: int, channels: int = 1) -> bytes:
    head = b"fmt \x10\0\0\0\x01\0" + channels.to_bytes(2, "little") + (8_000).to_bytes(4, "little")
    head += (16_000 * channels % 2**32).to_bytes(4, "little") + (2 * channels % 2**16).to_bytes(2, "little") + b"\x10\0"
    return b"RIFF" + size.to_bytes(4, "little") + b"WAVE" + head + b"data" + size.to_bytes(4, "little") + bytes(16_000)


BOMBS: dict[str, Callable[[], bytes]] = {
    "flac of an hour": lambda: encoded(HOUR, 8_000, "FLAC"),
    "flac of untold length": lambda: flac_that_promises(0, encoded(600, 8_000, "FLAC")),
    "flac that promises a month": lambda: flac_that_promises(30 * 24 * HOUR, encoded(1, 8_000, "FLAC")),
    "flac of eight channels": lambda: encoded(60, 48_000, "FLAC", channels=8),
    "mp3": lambda: encoded(90, 8_000, "MP3"),
    "ogg vorbis": lambda: encoded(90, 8_000, "OGG", "VORBIS"),
    "ogg opus": lambda: encoded(60, 8_000, "OGG", "OPUS"),
    "webm": lambda: encoded_by_ffmpeg(60, "webm", "libopus"),
    "aac": lambda: encoded_by_ffmpeg(60, "adts", "aac"),
    "adpcm": lambda: encoded(600, 8_000, "WAV", "IMA_ADPCM"),
    "wav that promises 4 GB": lambda: wav_that_promises(2**32 - 16),
    "wav of 65535 channels": lambda: wav_that_promises(2**31, 65_535),
    "zeros": lambda: bytes(4 * MIB),
    "gzip": lambda: gzip.compress(bytes(16 * MIB)),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_recordings_are_not_unpacked_beyond_what_is_taken(client: Client, folder: Path, bomb: str) -> None:
    content = BOMBS[bomb]()
    assert len(content) < 16 * MIB
    with memory_bounded(96 * MIB):
        answer = add(client, "bomb", content)
        form = part("input", b"Hello.") + part("prompt_audio", content, file=True) + END
        spoken = client.exchange("/v1/audio/speech", form, content_type=FORM)
    for refused, name in ((answer, "file"), (spoken, "reference audio")):
        assert (refused.status, refused.error["code"]) == (400, "invalid_audio")
        assert refused.error["message"].startswith(f"{name}: ")
        assert refused.error["message"].isprintable()
    assert not folder.exists() or not list(folder.glob("*.*"))


ELSEWHERE = [
    "../secret",
    "..",
    ".",
    "/etc/passwd",
    "..\\secret",
    "a/../../secret",
    "secret\0",
    "\0",
    "a\nb",
    " secret",
    "C:\\secret",
    "~",
    "..\uff0fsecret",
    "\u2025\u2215secret",
    "\u202esecret",
    "%2e%2e%2fsecret",
    "owners",
    "a" * 300,
    "e" + "\u0301" * 5_000,
    "\ud800",
]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_that_point_elsewhere_lead_nowhere(client: Client, folder: Path, name: str) -> None:
    before = sorted(path for path in folder.parent.rglob("*"))
    quoted = (
        quote(name.encode("utf-8", "surrogatepass"), safe="").replace(".", "%2e"),
        quote(name, errors="replace"),
    )
    answers = [client.exchange(f"/v1/audio/voices/{plain}", method="DELETE") for plain in quoted]
    answers.append(client.exchange("/v1/audio/speech", speech(voice=name)))
    if name != "owners":
        answers.append(add(client, name, encoded(1, 8_000, "WAV", loudness=3_000)))
        assert (answers[-1].status, answers[-1].error["code"]) == (400, "invalid_request")
    assert {answer.status for answer in answers} <= {400, 404, 405}
    assert all(answer.error["message"].isprintable() for answer in answers)
    assert sorted(path for path in folder.parent.rglob("*")) == before
    assert {path.read_text() for path in folder.parent.iterdir() if path.is_file()} == {"not to be touched"}


def test_a_voice_may_have_any_honest_name(client: Client) -> None:
    for name in ("anna-2", "Žofie", "小红", "not so.."):
        assert add(client, name, encoded(1, 8_000, "WAV", loudness=3_000)).status == 201
        assert client.exchange("/v1/audio/speech", speech(voice=name)).status == 200
        assert client.exchange(f"/v1/audio/voices/{quote(name)}", method="DELETE").status == 200
