from __future__ import annotations

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from vivavoce.errors import InvalidAudio, InvalidRequest, VoiceNotFound, VoiceStoreError
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.types import Audio
from vivavoce.service.audio.wav import wav_header
from vivavoce.service.voices.registry import VoiceRegistry

MODEL = "0123456789abcdef"


class CountingExtractor:
    """Decodes as the real one does, and counts its calls."""

    def __init__(self, make) -> None:
        self._make, self._lock = make, threading.Lock()
        self.transcripts: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def extract(self, source, transcript="", *, align=True, field="reference audio"):
        with self._lock:
            self.transcripts.append(transcript)
        assert self.go.wait(10)
        if not isinstance(source, Audio):
            decode_audio(source, field=field)
        return self._make("", transcript=transcript)


@pytest.fixture
def wav() -> bytes:
    samples = (np.sin(np.arange(16_000) * 0.1) * 9000).astype("<i2").tobytes()
    return wav_header(16_000, num_samples=16_000) + samples


@pytest.fixture
def extractor(full_voice) -> CountingExtractor:
    return CountingExtractor(full_voice)


@pytest.fixture
def built_in(plain_voice):
    return {"first": plain_voice("first"), "second": plain_voice("second", fingerprint="")}


@pytest.fixture
def registry(extractor, store, built_in) -> VoiceRegistry:
    return VoiceRegistry(extractor, store, built_in, MODEL)


def test_a_voice_is_itself(registry, full_voice):
    voice = full_voice()
    assert registry.resolve(voice) is voice


def test_none_is_the_first_built_in_voice(registry, built_in):
    assert registry.resolve() is built_in["first"]


def test_without_built_in_voices_one_must_be_given(extractor, store):
    with pytest.raises(
        InvalidRequest, match=r"^voice: none is given and this model brings none along; give a recording"
    ):
        VoiceRegistry(extractor, store, {}, MODEL).resolve(None)


def test_names_reach_built_in_and_stored_voices(registry, built_in, store, full_voice, same):
    anna = full_voice("anna")
    store.save(anna)
    same(registry.resolve("anna"), anna)
    same(registry.named("anna"), anna)
    assert registry.resolve("second") is built_in["second"]
    assert registry.named("first") is built_in["first"]


def test_a_stored_voice_goes_before_a_built_in_one(registry, store, full_voice, same):
    own = full_voice("first")
    store.save(own)
    same(registry.resolve("first"), own)
    assert registry.names() == ["first", "second"]


def test_names_are_built_in_ones_then_stored_ones(registry, store, plain_voice):
    for name in ("b", "a"):
        store.save(plain_voice(name))
    assert registry.names() == ["first", "second", "a", "b"]


def test_built_in_names_need_not_be_file_names(extractor, store, plain_voice):
    odd = {"a/b: *": plain_voice("a/b: *")}
    assert VoiceRegistry(extractor, store, odd, MODEL).resolve("a/b: *") is odd["a/b: *"]


@pytest.mark.parametrize("name", ["nobody", "", "..", "x\x00y", "n" * 100_000, "a\nb", "\ud800"])
def test_unknown_names_are_one_line(registry, name):
    for act in (registry.resolve, registry.named):
        with pytest.raises(VoiceNotFound) as caught:
            act(name)
        message = str(caught.value)
        assert "is not registered (known: first, second); add it with `vivavoce voice add`" in message
        assert message.isprintable()


@pytest.mark.parametrize("path", ["missing.wav", "./x", "/no/where", "SONG.MP3"])
def test_a_string_like_a_path_that_is_no_file(registry, path):
    with pytest.raises(VoiceNotFound) as caught:
        registry.resolve(path)
    assert str(caught.value) == f"voice: the file {path!r} does not exist; check the path"


def test_a_folder_is_no_recording(registry, tmp_path):
    with pytest.raises(VoiceNotFound, match=r"is a folder; check the path"):
        registry.resolve(str(tmp_path))


def test_a_stored_name_goes_before_a_file_of_that_name(registry, store, full_voice, same, wav, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("anna").write_bytes(wav)
    anna = full_voice("anna")
    store.save(anna)
    same(registry.resolve("anna"), anna)


def test_named_reads_no_recording(registry, extractor, wav, tmp_path):
    path = tmp_path / "reference.wav"
    path.write_bytes(wav)
    with pytest.raises(VoiceNotFound, match=r"is not registered"):
        registry.named(str(path))
    assert extractor.transcripts == []


def test_every_kind_of_recording_is_extracted_once(registry, extractor, wav, tmp_path):
    path = tmp_path / "reference.wav"
    path.write_bytes(wav)
    with path.open("rb") as file:
        voices = [registry.resolve(source, "Hello") for source in (str(path), path, wav, io.BytesIO(wav), file)]
    assert all(voice is voices[0] for voice in voices)
    assert extractor.transcripts == ["Hello"]
    assert voices[0].transcript == "Hello"


def test_samples_are_known_by_content_and_rate(registry, extractor):
    samples = np.sin(np.arange(32_000, dtype=np.float32))
    first = registry.resolve(Audio(samples, 16_000))
    assert registry.resolve(Audio(samples.copy(), 16_000)) is first
    assert registry.resolve(Audio(samples[::2], 8_000)) is not first
    assert registry.resolve(Audio(np.ascontiguousarray(samples[::2]), 16_000)) is not first
    assert registry.resolve(Audio(samples, 24_000)) is not first
    assert len(extractor.transcripts) == 4


def test_another_transcript_or_content_is_another_voice(registry, extractor, wav):
    first = registry.resolve(wav, "one")
    assert registry.resolve(wav, "two") is not first
    assert registry.resolve(wav[:-2] + b"\x01\x02", "one") is not first
    assert registry.resolve(wav, "one") is first
    assert extractor.transcripts == ["one", "two", "one"]


def test_a_changed_file_is_extracted_anew(registry, extractor, wav, tmp_path):
    path = tmp_path / "reference.wav"
    path.write_bytes(wav)
    before = path.stat()
    first = registry.resolve(path)
    path.write_bytes(wav[:-2] + b"\x01\x02")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert registry.resolve(path) is not first


def test_the_number_of_kept_voices_is_bounded(extractor, store, wav):
    registry = VoiceRegistry(extractor, store, {}, MODEL, capacity=2)
    for transcript in ("a", "b", "c", "a"):
        registry.resolve(wav, transcript)
    assert extractor.transcripts == ["a", "b", "c", "a"]


def test_ten_threads_with_one_new_recording_extract_once(registry, extractor, wav):
    extractor.go.clear()
    barrier = threading.Barrier(11)

    def ask(_: int):
        barrier.wait()
        return registry.resolve(io.BytesIO(wav), "Hello")

    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(ask, i) for i in range(10)]
        barrier.wait()
        extractor.go.set()
        assert len({id(answer.result()) for answer in answers}) == 1
    assert extractor.transcripts == ["Hello"]


def test_a_failed_extraction_is_not_remembered(registry, extractor):
    for _ in range(2):
        with pytest.raises(InvalidAudio, match=r"^reference audio: the given data is not an audio file"):
            registry.resolve(b"no audio at all")
    assert len(extractor.transcripts) == 2


def test_messages_keep_the_name_of_the_file(registry, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no audio at all")
    with path.open("rb") as file:
        for source in (path, str(path), file):
            with pytest.raises(InvalidAudio, match=r"^reference audio: 'notes.txt' is not an audio file"):
                registry.resolve(source)


def test_a_path_that_is_no_file_is_bad_audio(registry, tmp_path):
    with pytest.raises(InvalidAudio, match=r"'missing.wav' does not exist"):
        registry.resolve(tmp_path / "missing.wav")


@pytest.mark.parametrize("voice", [3, np.zeros(3), ["anna"]])
def test_other_kinds_are_refused(registry, voice):
    with pytest.raises(InvalidRequest, match=r"^voice: is a .*; give a name, or a recording"):
        registry.resolve(voice)


def test_a_transcript_belongs_to_a_recording(registry, store, full_voice):
    store.save(full_voice("anna"))
    for voice in ("anna", "first", None, full_voice("x"), full_voice("")):
        with pytest.raises(InvalidRequest, match=r"^prompt_text: belongs to a recording; .* leave prompt_text out$"):
            registry.resolve(voice, "Hello")


def test_voices_of_another_model_are_refused(extractor, store, full_voice):
    store.save(full_voice("anna"))
    registry = VoiceRegistry(extractor, store, {"theirs": full_voice("theirs")}, "f" * 16)
    for act in (registry.resolve, registry.named):
        for name in ("anna", "theirs"):
            with pytest.raises(InvalidRequest) as caught:
                act(name)
            assert str(caught.value) == (
                f"voice: {name!r} was extracted for another model ({MODEL!r}, this one is '{'f' * 16}'); "
                "extract it again from its recording"
            )
    with pytest.raises(InvalidRequest, match=r"^voice: the given one was extracted for another model"):
        registry.resolve(full_voice(""))


def test_voices_of_unknown_models_pass(registry, store, plain_voice, built_in, same):
    unknown = plain_voice("anna", fingerprint="")
    store.save(unknown)
    same(registry.resolve("anna"), unknown)
    assert registry.resolve("second") is built_in["second"]
    assert registry.resolve(unknown) is unknown


def test_the_fingerprint_is_computed_when_needed_and_once(extractor, store, full_voice, plain_voice, wav):
    calls = []

    def fingerprint() -> str:
        calls.append(1)
        return MODEL

    registry = VoiceRegistry(extractor, store, {"free": plain_voice("free", fingerprint="")}, fingerprint)
    registry.resolve("free")
    registry.resolve(wav)
    assert calls == []
    registry.resolve(full_voice())
    registry.resolve(full_voice())
    assert calls == [1]


def test_a_damaged_stored_voice_is_reported(registry, store, folder, full_voice):
    store.save(full_voice("anna"))
    (folder / "anna.safetensors").write_bytes(b"")
    with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' in anna.safetensors is damaged"):
        registry.resolve("anna")
