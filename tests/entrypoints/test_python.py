"""The Python API as a user meets it, bad input included."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import vivavoce
from vivavoce.errors import InvalidAudio, InvalidRequest, InvalidText, ModelNotFound, VoiceNotFound
from vivavoce.service.text.reading_processes import ReadingProcesses

RATE = 24_000
SHORT = vivavoce.SamplingParams(max_ratio=2.0)


@pytest.fixture(scope="module")
def tts(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> vivavoce.Vivavoce:
    return vivavoce.load(babble, device="cpu", voices=tmp_path_factory.mktemp("voices"))


def hum(seconds: float, rate: int = RATE) -> np.ndarray:
    """Something voiced: harmonics of 150 Hz that come and go."""
    t = np.arange(int(seconds * rate)) / rate
    wave = sum(np.sin(2 * np.pi * 150 * k * t) / k for k in range(1, 8))
    return (0.1 * wave * (1 + np.sin(2 * np.pi * 3 * t))).astype(np.float32)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "me.wav"
    soundfile.write(path, hum(2.0), RATE)
    return path


def test_public_names():
    assert dir(vivavoce) == sorted(vivavoce.__all__)
    for name in vivavoce.__all__:
        assert getattr(vivavoce, name) is not None
    with pytest.raises(AttributeError):
        vivavoce.nothing  # noqa: B018


def test_importing_the_package_is_light():
    code = "import sys, vivavoce; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_texts_that_other_processes_read_sound_the_same(tts, babble, tmp_path, monkeypatch):
    read, blocks = ReadingProcesses.read, []
    monkeypatch.setattr(
        ReadingProcesses, "read", lambda *given, **more: blocks.append(given[1]) or read(*given, **more)
    )
    text = "It is 5 o'clock on May 3, and costs 3€."
    with vivavoce.load(babble, device="cpu", voices=tmp_path, text_processes=1) as other:
        assert np.array_equal(other.speak(text, sampling=SHORT).samples, tts.speak(text, sampling=SHORT).samples)
    assert blocks == [text]


def test_speak_and_save(tts, tmp_path):
    speech = tts.speak("Hello there.", sampling=SHORT)
    assert speech.sample_rate == tts.sample_rate == RATE
    speech.save(tmp_path / "out.wav")
    samples, rate = soundfile.read(tmp_path / "out.wav", dtype="float32")
    assert rate == RATE
    np.testing.assert_allclose(samples, speech.samples, atol=1e-4)
    speech.save(tmp_path / "out.flac")
    assert soundfile.info(tmp_path / "out.flac").format == "FLAC"


def test_every_way_to_name_a_voice(tts, reference):
    text = "Hello."
    by_path = tts.speak(text, str(reference), prompt_text="Hum.", sampling=SHORT)
    by_bytes = tts.speak(text, reference.read_bytes(), prompt_text="Hum.", sampling=SHORT)
    voice = tts.extract_voice(reference, "Hum.", name="mine")
    by_value = tts.speak(text, voice, sampling=SHORT)
    tts.store.save(voice)
    by_name = tts.speak(text, "mine", sampling=SHORT)
    for other in (by_bytes, by_value, by_name):
        assert np.array_equal(by_path.samples, other.samples)
    assert "mine" in tts.voices()
    wordless = tts.speak(text, reference, sampling=SHORT)
    assert not np.array_equal(wordless.samples, by_path.samples)


def test_a_voice_is_the_one_that_speaks(tts, reference):
    assert tts.voice().name == tts.voices()[0]
    assert tts.voice("babble-b").name == "babble-b"
    voice = tts.voice(reference, "Hum.")
    assert voice.transcript == "Hum."
    assert tts.voice(str(reference), "Hum.") is voice, "extracted once"
    assert tts.voice(voice) is voice
    spoken = [tts.speak("Hello.", given, sampling=SHORT).samples for given in (voice, tts.voice(reference))]
    by_path = tts.speak("Hello.", reference, prompt_text="Hum.", sampling=SHORT).samples
    assert np.array_equal(by_path, spoken[0])
    assert not np.array_equal(by_path, spoken[1])


def test_text_as_it_is_spoken(tts):
    assert tts.normalize("It is 11:42 in Boston.") == "It is eleven forty two in Boston."
    assert tts.normalize(" \n") == ""
    with pytest.raises(InvalidText, match="Latin"):
        tts.normalize("你好世界")


def test_an_embedding_alone(tts, reference, monkeypatch):
    voice = tts.extract_voice(reference)

    def fail(*_, **__):
        raise AssertionError("speech tokens are extracted")

    monkeypatch.setattr("vivavoce.models.encoders.SpeechTokenizer.__call__", fail)
    for source in (reference, reference.read_bytes(), vivavoce.Audio(*soundfile.read(reference, dtype="float32"))):
        assert np.array_equal(tts.embed(source), voice.embedding)
    with pytest.raises(InvalidAudio, match=r"0\.10 s"):
        tts.embed(vivavoce.Audio(hum(0.1), RATE))


def test_stream_and_convert(tts, reference):
    chunks = list(tts.stream("Hello there.", reference, sampling=SHORT))
    assert chunks[-1].final
    converted = tts.convert(reference, voice=reference)
    assert abs(converted.duration_s - 2.0) < 0.1


async def test_when_the_text_is_heard(tts):
    text = "It is 5 past 9, and the ferry has left without its captain. " * 3
    speech = tts.speak(text, sampling=SHORT, language="en")
    assert "".join(mark.text for mark in speech.marks) == text
    assert speech.marks[-1].end_s == speech.duration_s
    chunks = tts.stream(text, sampling=SHORT)
    assert chunks.marks == ()
    assert {chunk.segment for chunk in chunks} == set(range(len(speech.marks)))
    assert chunks.marks == speech.marks
    stream = tts.astream(text, sampling=SHORT)
    async for _ in stream:
        pass
    assert stream.marks == speech.marks


async def test_a_stream_can_be_given_up(tts):
    chunks = tts.stream("Hello there. " * 20)
    next(chunks)
    chunks.close()
    assert list(chunks) == []
    assert [mark.start_s for mark in chunks.marks] == [0.0]
    stream = tts.astream("Hello there. " * 20)
    await anext(stream)
    await stream.aclose()
    assert [chunk async for chunk in stream] == []


@pytest.mark.parametrize("mode", ["zero_shot", "cross_lingual", "sft"])
def test_modes_by_name(tts, reference, mode):
    assert tts.speak("Hi.", reference, prompt_text="Hum.", mode=mode, sampling=SHORT).duration_s > 0


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"text": ""}, InvalidText, "text"),
        ({"text": "   \n "}, InvalidText, "text"),
        ({"text": "?!..."}, InvalidText, "text"),
        ({"text": "😀👍"}, InvalidText, "text"),
        ({"text": "a " * 500_000}, InvalidText, "20000"),
        ({"text": "你好世界"}, InvalidText, "Latin"),
        ({"text": "nul\0byte"}, InvalidText, "text"),
        ({"voice": "nobody"}, VoiceNotFound, "nobody"),
        ({"voice": "missing.wav"}, VoiceNotFound, r"missing\.wav"),
        ({"voice": "babble-b", "prompt_text": "Hum."}, InvalidRequest, "prompt_text"),
        ({"voice": hum(1.0)}, InvalidRequest, "ndarray"),
        ({"voice": io.StringIO("x")}, InvalidAudio, "text mode"),
        ({"speed": 3.0}, InvalidRequest, "speed: 3.0"),
        ({"speed": "fast"}, InvalidRequest, "speed: 'fast'"),
        ({"seed": 1.5}, InvalidRequest, "seed: 1.5"),
        ({"seed": None}, InvalidRequest, "seed: None"),
        ({"seed": -1}, InvalidRequest, "seed"),
        ({"mode": 3}, InvalidRequest, "mode: 3"),
        ({"mode": "singing"}, InvalidRequest, "singing"),
        ({"mode": "zero_shot"}, InvalidRequest, "reference"),
    ],
)
def test_what_cannot_be_spoken_is_told_in_one_line(tts, arguments, error, word):
    with pytest.raises(error, match=word) as raised:
        tts.speak(**{"text": "Hello.", **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"model": "no-such-model"}, ModelNotFound, "no-such-model"),
        ({"device": "abacus"}, InvalidRequest, "abacus"),
        ({"device": "cuda:99"}, InvalidRequest, "cuda:99"),
        ({"dtype": "int3"}, InvalidRequest, "int3"),
    ],
)
def test_wrong_ways_to_load(babble, arguments, error, word):
    with pytest.raises(error, match=word):
        vivavoce.load(**{"model": babble, **arguments})


def test_sixteen_bit_and_a_warning_that_the_model_babbles(babble, tmp_path, caplog):
    tts = vivavoce.load(babble, device="cpu", dtype="bfloat16", voices=tmp_path)
    assert "babbles" in caplog.text
    speech = tts.speak("Hello.", sampling=SHORT)
    assert np.isfinite(speech.samples).all()
    assert np.abs(speech.samples).max() > 0.01
