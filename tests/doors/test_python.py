"""The Python API as a user meets it, bad input included."""

import asyncio
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import vivavoce
from vivavoce.errors import InvalidAudio, InvalidRequest, InvalidText, ModelNotFound, VoiceNotFound
from vivavoce.service.placement import count_text_processes

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
    assert set(vivavoce.__all__) == set(vivavoce._HOMES)
    assert dir(vivavoce) == sorted(vivavoce.__all__)
    for name in vivavoce.__all__:
        assert getattr(vivavoce, name) is not None
    with pytest.raises(AttributeError):
        vivavoce.nothing  # noqa: B018


def test_importing_the_package_is_light():
    code = "import sys, vivavoce; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_texts_that_other_processes_read_sound_the_same(tts, babble, tmp_path):
    text = "It is 5 o'clock on May 3, and costs 3€."
    with vivavoce.load(babble, device="cpu", voices=tmp_path, text_processes=1) as other:
        assert other._synthesizer.text._elsewhere is not None
        assert np.array_equal(other.speak(text, sampling=SHORT).samples, tts.speak(text, sampling=SHORT).samples)
    assert other._synthesizer.text.segments(text) == tts._synthesizer.text.segments(text)


def test_how_many_processes_read(babble):
    assert tts_text_processes(None, "cpu") == 0
    assert 0 <= tts_text_processes(None, "cuda") <= 4
    with pytest.raises(InvalidRequest, match="text_processes: -1 is outside of 0 … 64"):
        vivavoce.load(babble, device="cpu", text_processes=-1)


def tts_text_processes(asked, device):
    return count_text_processes(asked, torch.device(device))


@pytest.mark.parametrize("text", [None, 5, b"bytes"])
def test_what_is_no_text(tts, text):
    with pytest.raises(InvalidText, match="is no text"):
        tts.speak(text)
    with pytest.raises(InvalidText, match="is no text"):
        tts.stream(text)


def test_samples_as_a_recording(tts):
    voice = tts.extract_voice(vivavoce.Audio(hum(1.0), RATE), "Hum.")
    assert voice.has_prompt


def test_threads_do_not_disturb_each_other(tts):
    texts = ["Hello.", "How are you?", "Fine.", "And you?"]
    alone = [tts.speak(text, seed=seed, sampling=SHORT).samples for seed, text in enumerate(texts)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda item: tts.speak(item[1], seed=item[0], sampling=SHORT), enumerate(texts)))
    for one, other in zip(alone, together, strict=True):
        # The same tokens; neighbours in a batch may move the last bits of a mel.
        np.testing.assert_allclose(other.samples, one, atol=2e-3)


def test_an_untrained_model_says_so(babble, tmp_path, caplog):
    vivavoce.load(babble, device="cpu", voices=tmp_path)
    assert "babbles" in caplog.text


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
    with pytest.raises(VoiceNotFound, match="nobody"):
        tts.voice("nobody")
    with pytest.raises(InvalidRequest, match="prompt_text"):
        tts.voice("babble-b", "Hum.")


def test_text_as_it_is_spoken(tts):
    assert tts.normalize("It is 11:42 in Boston.") == "It is eleven forty two in Boston."
    assert tts.normalize(" \n") == ""
    with pytest.raises(InvalidText, match="Latin"):
        tts.normalize("你好世界")


def test_an_embedding_alone(tts, reference, monkeypatch):
    voice = tts.extract_voice(reference)

    def fail(*_, **__):
        raise AssertionError("speech tokens are extracted")

    monkeypatch.setattr("vivavoce.models.speech_tokenizer.onnx.SpeechTokenizer.__call__", fail)
    for source in (reference, reference.read_bytes(), vivavoce.Audio(*soundfile.read(reference, dtype="float32"))):
        assert np.array_equal(tts.embed(source), voice.embedding)
    with pytest.raises(InvalidAudio, match=r"0\.10 s"):
        tts.embed(vivavoce.Audio(hum(0.1), RATE))


def test_stream_and_convert(tts, reference):
    chunks = list(tts.stream("Hello there.", reference, sampling=SHORT))
    assert chunks[-1].final
    converted = tts.convert(reference, voice=reference)
    assert abs(converted.duration_s - 2.0) < 0.1


def test_when_the_text_is_heard(tts):
    text = "It is 5 past 9, and the ferry has left without its captain. " * 3
    speech = tts.speak(text, sampling=SHORT, language="en")
    assert "".join(mark.text for mark in speech.marks) == text
    assert speech.marks[-1].end_s == speech.duration_s
    chunks = tts.stream(text, sampling=SHORT)
    assert chunks.marks == ()
    assert {chunk.segment for chunk in chunks} == set(range(len(speech.marks)))
    assert chunks.marks == speech.marks

    async def listen():
        stream = tts.astream(text, sampling=SHORT)
        async for _ in stream:
            pass
        return stream.marks

    assert asyncio.run(listen()) == speech.marks


def test_a_stream_can_be_given_up(tts):
    chunks = tts.stream("Hello there. " * 20)
    next(chunks)
    chunks.close()
    assert list(chunks) == []
    assert [mark.start_s for mark in chunks.marks] == [0.0]

    async def leave():
        stream = tts.astream("Hello there. " * 20)
        await anext(stream)
        await stream.aclose()
        return [chunk async for chunk in stream]

    assert asyncio.run(leave()) == []


@pytest.mark.parametrize("mode", ["zero_shot", "cross_lingual", "sft"])
def test_modes_by_name(tts, reference, mode):
    assert tts.speak("Hi.", reference, prompt_text="Hum.", mode=mode, sampling=SHORT).duration_s > 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "text"),
        ("   \n ", "text"),
        ("?!...", "text"),
        ("😀👍", "text"),
        ("a " * 500_000, "20000"),
        ("你好世界", "Latin"),
        ("nul\0byte", "text"),
    ],
)
def test_text_that_cannot_be_spoken(tts, text, word):
    with pytest.raises(InvalidText, match=word) as error:
        tts.speak(text)
    assert "\n" not in str(error.value)


def test_emoji_among_words_are_passed_over(tts):
    with_emoji, without = (tts.speak(text, sampling=SHORT) for text in ("Hello 😀 you.", "Hello you."))
    assert np.array_equal(with_emoji.samples, without.samples)


@pytest.mark.parametrize(
    ("samples", "rate", "word"),
    [
        (hum(0.1), RATE, "0.10 s"),
        (np.tile(hum(5), 120), RATE, "30"),
        (np.zeros(2 * RATE, np.float32), RATE, "silent"),
        (np.full(2 * RATE, np.nan, np.float32), RATE, "NaN"),
    ],
)
def test_recordings_that_cannot_be_used(tts, tmp_path, samples, rate, word):
    path = tmp_path / "bad.wav"
    soundfile.write(path, samples, rate, subtype="FLOAT")
    with pytest.raises(InvalidAudio, match=word) as error:
        tts.speak("Hello.", path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 96_000])
@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3"])
def test_recordings_of_all_common_kinds(tts, tmp_path, rate, kind):
    if (kind, rate) in {("mp3", 96_000), ("ogg", 96_000)}:
        pytest.skip("the format has no such rate")
    path = tmp_path / f"me.{kind}"
    stereo = np.stack([hum(1.5, rate)] * 2, axis=1)
    soundfile.write(path, stereo, rate)
    assert len(tts.extract_voice(path).speech_tokens) in range(36, 41)


def test_a_text_file_named_wav(tts, tmp_path):
    path = tmp_path / "words.wav"
    path.write_text("these are only words")
    with pytest.raises(InvalidAudio, match=r"words\.wav"):
        tts.speak("Hello.", path)


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"voice": "nobody"}, VoiceNotFound, "nobody"),
        ({"voice": "missing.wav"}, VoiceNotFound, r"missing\.wav"),
        ({"speed": 3.0}, InvalidRequest, "speed: 3.0"),
        ({"speed": "fast"}, InvalidRequest, "speed: 'fast'"),
        ({"seed": 1.5}, InvalidRequest, "seed: 1.5"),
        ({"seed": None}, InvalidRequest, "seed: None"),
        ({"mode": 3}, InvalidRequest, "mode: 3"),
        ({"voice": hum(1.0)}, InvalidRequest, "ndarray"),
        ({"voice": io.StringIO("x")}, InvalidAudio, "text mode"),
        ({"seed": -1}, InvalidRequest, "seed"),
        ({"mode": "singing"}, InvalidRequest, "singing"),
        ({"mode": "zero_shot"}, InvalidRequest, "reference"),
    ],
)
def test_wrong_arguments(tts, arguments, error, word):
    with pytest.raises(error, match=word) as raised:
        tts.speak("Hello.", **arguments)
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


def test_sixteen_bit(babble, tmp_path):
    tts = vivavoce.load(babble, device="cpu", dtype="bfloat16", voices=tmp_path)
    speech = tts.speak("Hello.", sampling=SHORT)
    assert np.isfinite(speech.samples).all()
    assert np.abs(speech.samples).max() > 0.01
