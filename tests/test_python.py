"""The Python API as a user meets it, bad input included."""

import asyncio
import base64
import inspect
import io
import multiprocessing
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

import vivavoce
from vivavoce.errors import (
    EngineStopped,
    InvalidAudio,
    InvalidRequest,
    InvalidText,
    MissingDependency,
    ModelNotFound,
    RequestCancelled,
    VivavoceError,
    VoiceNotFound,
)
from vivavoce.frontend.speech import Delivery
from vivavoce.frontend.speech import joined as joined_deliveries
from vivavoce.frontend.speech_result import PendingSpeech
from vivavoce_textnorm import ReadingProcesses

RATE = 24_000
SHORT = vivavoce.SamplingParams(max_ratio=2.0)
LONG = "Hello there, how are you? " * 400
LATE_S = 20.0
FORK_S = 60.0


@pytest.fixture(scope="module")
def tts(babble: Path, tmp_path_factory: pytest.TempPathFactory) -> vivavoce.Vivavoce:
    return vivavoce.load(babble, device="cpu", voices=tmp_path_factory.mktemp("voices"))


def closed() -> io.BytesIO:
    file = io.BytesIO(b"RIFF")
    file.close()
    return file


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


async def _first(stream):
    return await anext(aiter(stream))


def errors_in_a_fork(tts, reference):
    """What each use of a model that was loaded before a fork comes to there, after which it is closed."""
    uses = {
        "speak": lambda: tts.speak("Hi."),
        "speak_many": lambda: list(tts.speak_many(["Hi."])),
        "stream": lambda: list(tts.stream("Hi.")),
        "aspeak": lambda: asyncio.run(tts.aspeak("Hi.")),
        "astream": lambda: asyncio.run(_first(tts.astream("Hi."))),
        "voice": lambda: tts.voice(reference),
        "extract_voice": lambda: tts.extract_voice(reference),
        "embed": lambda: tts.embed(reference),
        "convert": lambda: tts.convert(reference),
        "warm_up": lambda: tts.warm_up(),
        "statistics": lambda: tts.statistics,
        "normalize": lambda: tts.normalize("Hi."),
    }

    def use_all(answers):
        for name, use in uses.items():
            try:
                use()
                answers.send((name, "nothing was raised"))
            except EngineStopped as error:
                answers.send((name, str(error)))
        tts.close()
        answers.send(("closed", ""))

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=use_all, args=(there,))
    process.start()
    there.close()
    try:
        answers = [here.recv() for _ in (*uses, "closed") if here.poll(FORK_S)]
        process.join(FORK_S)
        assert process.exitcode == 0
    finally:
        process.kill()
    assert [name for name, _ in answers] == [*uses, "closed"]
    return {said for _, said in answers[:-1]}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork by themselves")
def test_a_model_that_was_loaded_before_a_fork_says_so_there_and_goes_on_here(tts, reference):
    tts.speak("Hi.", sampling=SHORT)
    (said,) = errors_in_a_fork(tts, reference)
    assert said.endswith("its threads stayed behind; load it in each worker")
    assert tts.speak("Hi.", sampling=SHORT).samples.size


def test_closed_models_leave_no_thread(babble, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # with one the engine has no helper
    before, kept = set(threading.enumerate()), []
    for _ in range(2):
        with vivavoce.load(babble, device="cpu") as model:
            model.speak("Hi.", sampling=SHORT)
        kept.append(model)
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_the_other_generations_speak_in_every_way(other_babble, reference, tmp_path):
    with vivavoce.load(other_babble, device="cpu", voices=tmp_path) as other:
        me = other.extract_voice(reference, "Some words.", name="me")
        other.store.save(me)
        whole = other.speak("Hello there.", "me", sampling=SHORT)
        assert whole.marks[0].text == "Hello there."
        pieces = [chunk.samples for chunk in other.stream(iter(["Hello ", "there."]), "me", sampling=SHORT)]
        assert sum(map(len, pieces)) > 0
        assert len(asyncio.run(other.aspeak("Hello there.", "me", sampling=SHORT)).samples) == len(whole.samples)
        assert len(other.speak("Hello there.", "me", sampling=SHORT, speed=1.5).samples) < len(whole.samples)
        spoken = list(other.speak_many(["One.", "Two."], "me", sampling=SHORT))
        assert [len(one.samples) > 0 for one in spoken] == [True, True]
        assert abs(other.convert(reference, "babble-a").duration_s - 2.0) < 0.1
        assert whole.sample_rate == other.sample_rate


@pytest.fixture(scope="module")
def first(babble_v1: Path, tmp_path_factory: pytest.TempPathFactory) -> vivavoce.Vivavoce:
    return vivavoce.load(babble_v1, device="cpu", voices=tmp_path_factory.mktemp("voices"))


@pytest.mark.slow
def test_cosyvoice_1_streams_as_officially(first):
    """100 speech tokens are 172 frames; at a chunk's end 5120 samples wait for the next one's beginning."""
    exact = vivavoce.SamplingParams(exact_tokens=270)
    for policy in (None, vivavoce.ChunkPolicy.official()):
        chunks = list(first.stream("Hello there.", policy=policy, sampling=exact))
        assert [len(one.samples) for one in chunks] == [172 * 256 - 5120, 192 * 256 - 5120, 140 * 256]
        assert {one.sample_rate for one in chunks} == {22_050}
    for speak in (first.stream, first.astream):
        with pytest.raises(InvalidRequest, match=r"^chunk policy: CosyVoice 1 has no low-latency; use off"):
            speak("Hello there.", policy=vivavoce.ChunkPolicy.low_latency())
    said = ["The ferry has left without its cap", "tain, and nobody knows why. Who", " does?"]
    parts = vivavoce.SamplingParams(exact_tokens=40)
    assert [len(one.samples) for one in first.stream(said, sampling=parts)] == [68 * 256] * 2


@pytest.mark.parametrize("mode", ["zero_shot", "cross_lingual", "sft", "instruct"])
def test_cosyvoice_1_speaks_in_every_mode(first, reference, mode):
    exact = vivavoce.SamplingParams(exact_tokens=50)
    how = {"instructions": "A calm speaker."} if mode == "instruct" else {"mode": mode}
    speech = first.speak("Hello there.", reference, transcript="What I say.", sampling=exact, **how)
    assert (speech.sample_rate, len(speech.samples)) == (22_050, 86 * 256)


def test_texts_that_other_processes_read_sound_the_same(tts, babble, tmp_path, monkeypatch):
    read, blocks = ReadingProcesses.read, []
    monkeypatch.setattr(
        ReadingProcesses, "read", lambda *given, **more: blocks.append(given[1]) or read(*given, **more)
    )
    text = "It is 5 o'clock on May 3, and costs 3€."
    with vivavoce.load(babble, device="cpu", voices=tmp_path, text_processes=1) as other:
        spoken = [one.speak(text, sampling=SHORT, reading="official").samples for one in (other, tts)]
    assert np.array_equal(*spoken)
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
    by_path = tts.speak(text, str(reference), transcript="Hum.", sampling=SHORT)
    by_bytes = tts.speak(text, reference.read_bytes(), transcript="Hum.", sampling=SHORT)
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
    by_path = tts.speak("Hello.", reference, transcript="Hum.", sampling=SHORT).samples
    assert np.array_equal(by_path, spoken[0])
    assert not np.array_equal(by_path, spoken[1])


def test_a_text_with_nothing_to_say_is_silence_and_a_doubtful_one_is_told(tts):
    assert tts.speak("👍").duration_s == sum(len(one.samples) for one in tts.stream("👍")) / tts.sample_rate == 0.2
    assert sum(len(one.samples) for one in tts.stream(["\n", "👍"])) == 0.2 * tts.sample_rate
    stream = tts.stream(["Your code is 000", "4000."])
    samples = sum(len(chunk.samples) for chunk in stream)
    assert stream.verdict().audio_s == samples / tts.sample_rate
    (warning,) = stream.verdict().warnings
    assert "'0004000' repeats itself" in warning


def test_text_as_it_is_spoken(tts):
    assert tts.normalize("It is 11:42 in Boston.") == "It is eleven forty two in Boston."
    assert tts.normalize("It costs $3.50, Ng.", lexicon={"Ng": "Eng"}) == "It costs three dollars and fifty cents, Eng."
    assert tts.normalize("Run `ls` 😀", emojis="named", code="silent") == "Run grinning face"
    assert tts.normalize("It costs $3.50.", reading="official") == "It costs three point five dollars."
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


@pytest.mark.slow
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


class Beats:
    """An event loop that goes on: `seen` is set again and again, by a task of the loop."""

    def __init__(self):
        self.seen = threading.Event()

    async def __aenter__(self):
        self.task = asyncio.create_task(self.beat())
        return self

    async def beat(self):
        while True:
            self.seen.set()
            await asyncio.sleep(0.001)

    async def __aexit__(self, *_):
        self.task.cancel()

    def wait(self):
        """Block this thread until the loop has gone on twice: for ever, if it is the loop's own."""
        for _ in range(2):
            self.seen.clear()
            assert self.seen.wait(LATE_S), "the event loop is blocked"


async def test_an_event_loop_goes_on_while_texts_and_voices_are_read(tts, reference):
    class Recording(io.BytesIO):
        def read(self, *size):
            beats.wait()
            return super().read(*size)

    def pieces():
        for piece in ("Hello there, ", "how are ", "you?"):
            beats.wait()
            yield piece

    async with Beats() as beats:
        recording = Recording(reference.read_bytes())
        stream = tts.astream(pieces(), recording, transcript="Hum.", sampling=SHORT)
        assert stream.marks == ()
        assert [chunk.final async for chunk in stream][-1]
        assert "".join(mark.text for mark in stream.marks) == "Hello there, how are you?"
        recording = Recording(soundfile_bytes(hum(1.0)))
        speech = await tts.aspeak("Hello.", recording, sampling=SHORT)
        assert np.array_equal(speech.samples, tts.speak("Hello.", (hum(1.0), RATE), sampling=SHORT).samples)


async def test_an_async_iterable_is_spoken_as_its_pieces_in_a_list(tts):
    taken = []

    async def pieces():
        for piece in ("Hello ", "", "there, how ", "are you", "?"):
            await asyncio.sleep(0)
            taken.append(asyncio.current_task())
            yield piece

    heard = np.concatenate([chunk.samples async for chunk in tts.astream(pieces(), sampling=SHORT)])
    expected = [chunk.samples for chunk in tts.stream(["Hello there, how are you?"], sampling=SHORT)]
    assert np.array_equal(heard, np.concatenate(expected))
    assert len(set(taken)) == 1, "timeouts and task groups of a generator hold for one task"


async def test_what_an_async_iterable_cannot_be(tts):
    async def pieces(*given):
        for piece in given:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    for bad, error, word in (
        (pieces("Hello there. ", ConnectionError("gone")), ConnectionError, "gone"),
        (pieces(ConnectionError("gone")), ConnectionError, "gone"),
        (pieces("", ""), InvalidText, "empty"),
        (pieces("Hello", None), InvalidText, "text"),
        (pieces("Привет"), InvalidText, "Latin"),
    ):
        with pytest.raises(error, match=word):
            [chunk async for chunk in tts.astream(bad, sampling=SHORT)]
    with pytest.raises(InvalidText, match=r"async_generator is not text; .* an async one to astream$"):
        tts.stream(pieces("Hello."))
    with pytest.raises(VoiceNotFound):
        await anext(tts.astream("Hello.", "nobody"))


def wait_until_free(tts):
    until = time.monotonic() + LATE_S
    while (now := tts.statistics).requests.unfinished or now.slots.used:
        assert time.monotonic() < until
        time.sleep(0.01)


async def test_a_task_that_is_cancelled_frees_its_slots_and_its_source(tts):
    ended, waiting = asyncio.Event(), asyncio.Event()

    async def pieces(*given):
        try:
            for piece in given:
                yield piece
            waiting.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def listen(text):
        async for _ in tts.astream(text, sampling=SHORT):
            pass

    for text in (pieces("Hello"), pieces("Hello there. How are you? ")):
        task = asyncio.create_task(listen(text))
        await asyncio.wait_for(waiting.wait(), LATE_S)
        task.cancel()
        await asyncio.wait_for(ended.wait(), LATE_S)
        with pytest.raises(asyncio.CancelledError):
            await task
        ended.clear()
        waiting.clear()
    wait_until_free(tts)
    before = tts.statistics.requests.cancelled
    speaking = asyncio.create_task(tts.aspeak(LONG))
    while not tts.statistics.slots.used:
        await asyncio.sleep(0.01)
    speaking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await speaking
    wait_until_free(tts)
    assert tts.statistics.requests.cancelled == before + 1


@pytest.mark.parametrize("ended_by", ["another thread", "Ctrl-C", "another thread, of many"])
def test_speak_can_be_given_up(tts, ended_by, request):
    # A runner in the background may have SIGINT ignored, which this process has inherited then.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    cancel = threading.Event()

    def end():
        while not tts.statistics.slots.used:
            time.sleep(0.01)
        if ended_by == "Ctrl-C":
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        cancel.set()

    threading.Thread(target=end, daemon=True).start()
    if "many" in ended_by:
        with pytest.raises(RequestCancelled):
            list(tts.speak_many([LONG, LONG], cancel=cancel))
    elif ended_by == "Ctrl-C":
        with pytest.raises(KeyboardInterrupt):
            tts.speak(LONG)
    else:
        with pytest.raises(RequestCancelled):
            tts.speak(LONG, cancel=cancel)
    wait_until_free(tts)
    with pytest.raises(RequestCancelled):
        tts.speak("Hello.", cancel=cancel)


def test_many_texts_are_spoken_together_and_come_in_order(tts):
    texts = ["Hello there.", "A much longer text than all of the others, in which more is said.", "Hi.", "Bye now."]
    before = tts.statistics.stages[1].batches
    alone = [tts.speak(text, sampling=SHORT) for text in texts]
    steps = tts.statistics.stages[1].batches
    many = list(tts.speak_many(iter(texts), sampling=SHORT))
    assert [speech.marks for speech in many] == [speech.marks for speech in alone]
    for one, other in zip(many, alone, strict=True):
        np.testing.assert_allclose(one.samples, other.samples, atol=5e-2)
    assert tts.statistics.stages[1].batches - steps < steps - before, "steps are shared"
    with pytest.raises(InvalidText, match="one text; give a list"):
        tts.speak_many("Hello.")
    speeches = tts.speak_many(["Hello.", "你好", "Hi."], sampling=SHORT)
    assert next(speeches).duration_s > 0
    with pytest.raises(InvalidText, match="Latin"):
        next(speeches)
    with pytest.raises(InvalidRequest, match="errors: 'keep' is unknown; use raise or return"):
        tts.speak_many(["Hello."], errors="keep")
    speeches = tts.speak_many(["Hi.", LONG, LONG], sampling=SHORT)
    next(speeches)
    speeches.close()
    wait_until_free(tts)


def test_a_text_that_fails_among_many_ends_them_before_later_ones_are_returned(tts, monkeypatch):
    results, spoken = PendingSpeech.result, []

    def result(pending, cancel=None):
        spoken.append(pending)
        if len(spoken) == 2:
            raise InvalidRequest("text: refused late")
        return results(pending, cancel)

    monkeypatch.setattr(PendingSpeech, "result", result)
    speeches = tts.speak_many(["Hello.", "Hi.", "Bye now."], sampling=SHORT)
    assert next(speeches).duration_s > 0
    with pytest.raises(InvalidRequest, match="refused late"):
        next(speeches)
    assert len(spoken) == 2
    wait_until_free(tts)


def test_bad_texts_among_many_leave_their_errors_in_their_places(tts):
    texts = ["Hello.", "你好", "", "Hi.", "x" * 20_001, "Bye now."]
    returned = list(tts.speak_many(texts, errors="return", sampling=SHORT))
    assert [type(one).__name__ for one in returned] == [
        "Speech",
        "InvalidText",
        "InvalidText",
        "Speech",
        "InvalidText",
        "Speech",
    ]

    async def together():
        spoken = (tts.aspeak(text, sampling=SHORT) for text in texts)
        return await asyncio.gather(*spoken, return_exceptions=True)

    gathered = asyncio.run(together())
    for one, other in zip(returned, gathered, strict=True):
        assert type(one) is type(other)
        assert str(one) == str(other) if isinstance(one, VivavoceError) else one.marks == other.marks
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(RequestCancelled):
        list(tts.speak_many(texts, errors="return", cancel=cancel))


def test_an_unknown_keyword_names_the_near_one(tts):
    for call, near in (
        (lambda: tts.speak("Hi.", spead=1.1), "speed"),
        (lambda: tts.stream("Hi.", polcy=None), "policy"),
        (lambda: tts.speak_many(["Hi."], transcrip="Hi."), "transcript"),
        (lambda: tts.astream("Hi.", sed=3), "seed"),
        (lambda: tts.normalize("Hi.", emoji="named"), "emojis"),
    ):
        with pytest.raises(TypeError, match=f"is an unexpected keyword; did you mean '{near}'"):
            call()
    with pytest.raises(TypeError, match="'zzz' is an unexpected keyword; the keywords are adapter, code, emojis, "):
        tts.speak("Hi.", zzz=1)


def test_help_and_repr_say_what_there_is(tts):
    text = inspect.getdoc(type(tts).speak)
    for name in vivavoce.api.Manner.__annotations__:
        assert re.search(rf"\b{name}\b.*:", text), name
    stream = tts.stream("Hi.", sampling=SHORT)
    assert repr(stream) == "ChunkStream(open, 0.00 s taken)"
    taken = sum(chunk.duration_s for chunk in stream)
    assert repr(stream) == f"ChunkStream(closed, {taken:.2f} s taken)"


def soundfile_bytes(samples, rate=RATE):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_samples_as_a_voice(tts, reference):
    floats, rate = soundfile.read(reference, dtype="float32")
    integers, _ = soundfile.read(reference, dtype="int16")
    voice = tts.voice(reference)
    for samples in (floats, integers, torch.from_numpy(floats)[None], np.stack([floats, floats], 1), floats[:, None]):
        given = tts.voice((samples, rate))
        assert np.array_equal(given.speech_tokens, voice.speech_tokens)
        assert torch.allclose(given.embedding, voice.embedding, atol=1e-4)
    assert tts.voice((floats, rate)) is tts.voice((floats.copy(), rate)), "extracted once"
    assert torch.allclose(tts.embed((floats, rate)), voice.embedding, atol=1e-4)
    assert tts.convert((floats, rate), voice).duration_s > 1
    quiet_bytes = ((floats[:RATE] + 1) * 128).astype(np.uint8)
    assert torch.equal(tts.embed((quiet_bytes, RATE)), tts.embed((quiet_bytes / np.float32(128) - 1, RATE)))
    for array, given, told in [
        (RATE, floats, r"the array has the shape \[\]; give \[n\] or"),
        ([], RATE, r"the array has the shape \[0\]"),
        (floats > 0, RATE, "the array has the type bool; give floats"),
        (integers.astype(np.int64), RATE, "the array has the type int64; give floats"),
        *((floats, bad, "the rate .* is not a whole number of hertz") for bad in ("24000", 24_000.5, 0, float("nan"))),
    ]:
        with pytest.raises(InvalidAudio, match=f"^reference audio: {told}"):
            tts.voice((array, given))
    for refused in ((floats, 4_000), vivavoce.Audio(np.tile(floats, 8).astype(np.float32), 200_000)):
        with pytest.raises(InvalidAudio, match=r"^reference audio: has a sample rate of .*limits are 8000 and 192000"):
            tts.voice(refused)
    with pytest.raises(InvalidAudio, match=r"1 values are not a recording; give \(array, rate\)"):
        tts.voice((floats,))


def test_values_of_a_wrong_type_are_named(tts, reference):
    speech, written = tts.speak("Hello there.", sampling=SHORT), io.BytesIO()
    written.write(soundfile_bytes(speech.samples))
    for call, told in [
        (lambda: tts.speak("Hi.", sampling={"top_k": 5}), "sampling: .*type dict, not SamplingParams; such as"),
        (lambda: tts.stream("Hi.", policy="fast"), "policy: 'fast' is of type str, not ChunkPolicy"),
        (lambda: vivavoce.load(settings={"slots": 1}), "settings: .*type dict, not EngineSettings"),
        (lambda: tts.speak("Hi.", cancel=True), "cancel: True is not an event"),
        (lambda: tts.store.save("anna"), "voice: 'anna' is of type str, not Voice"),
        (lambda: tts.normalize("Hi.", lexicon="words.txt"), "lexicon: 'words.txt' is of type str, not Mapping"),
        (lambda: tts.speak("Hi.", speed="1"), "speed: '1' is not a number; choose one in 0.5"),
        (lambda: tts.speak("Hi.", instructions="x" * 4_097), "instructions: 4097 characters exceed 4096"),
        (lambda: tts.speak("Hi.", mode="instruct"), "mode: .*give it as instructions"),
        (lambda: tts.speak("Hi.", reference, transcript=5), "transcript: 5 is of type int, not str"),
        (lambda: tts.extract_voice(reference, 5), "transcript: 5 is of type int, not str"),
        (
            lambda: tts.speak("Hi.", reference, transcript="A", prompt_text="B"),
            "prompt_text: this keyword has two names",
        ),
        (lambda: tts.speak("Hi.", options={"speed": 2}), "options: .*type dict, not SpeakOptions; give keywords"),
        (lambda: tts.speak("Hi.", speed=float("nan")), "speed: nan is outside of 0.5"),
        (lambda: tts.speak("Hi.", speed=True), "speed: True is not a number"),
        (lambda: tts.speak("Hi.", seed=True), "seed: True is not a whole number"),
        (lambda: vivavoce.SamplingParams(top_k=True), "top_k: True is outside of 1"),
        (lambda: vivavoce.load(5), "model: 5 is of type int, not .*; give a name or a folder"),
        (lambda: vivavoce.load(device=0), "device: 0 is of type int, not .*; name one, such as"),
        (lambda: vivavoce.load(device=[None]), "device: None is unknown; use auto, cpu"),
        (lambda: vivavoce.load(voices=5), "voices: 5 is of type int, not .*; give a folder, or the URL"),
        (lambda: vivavoce.load(text_processes="2"), "text_processes: '2' is outside of 0 … 64"),
        (lambda: tts.speak_many(5), "texts: 5 is of type int, not Iterable; give a list of texts"),
        (lambda: speech.save(5), "output: 5 is of type int, not .*; give the name of a file"),
        (lambda: speech.save(None), "output: None is of type NoneType, not .*; give the name of a file"),
        (lambda: tts.warm_up(-1), "seconds: -1 is not a number of 0 or more; choose one"),
        (lambda: tts.warm_up(float("nan")), "seconds: nan is not a number of 0 or more"),
        (lambda: vivavoce.Consent(5), "consent: 5 is of type int, not str; say it in words"),
        (lambda: vivavoce.Consent("Yes.", 5), "consent_by: 5 is of type int, not str"),
        (lambda: tts.check(None), "text: None is of type NoneType, not str"),
        (lambda: speech.to_bytes("mp3", 16_000.0), "sample_rate: 16000.0 Hz is not supported"),
        (lambda: speech.to_bytes("wav", "8000"), "sample_rate: '8000' Hz is not supported"),
        (lambda: tts.embed(written), r"is empty \(0 bytes\); it is read from its position, .*call seek\(0\)"),
    ]:
        with pytest.raises(InvalidRequest, match=told):
            call()
    with pytest.raises(ModelNotFound, match="model: the name is empty"):
        vivavoce.load("")
    with pytest.raises(TypeError):
        speech + 5
    assert len(tts.speak("Hi.", seed=np.int64(5), sampling=SHORT).samples)
    tts.warm_up(0, streams=10**400)  # no float is as large


def test_speech_as_a_file_in_memory_and_in_a_notebook(tts):
    speech = tts.speak("Hello there.", sampling=SHORT)
    for format, name in (("wav", "WAV"), ("flac", "FLAC"), ("mp3", "MP3"), ("opus", "OGG")):
        assert soundfile.info(io.BytesIO(speech.to_bytes(format))).format == name
    assert speech.to_bytes() == speech.to_bytes("wav")
    with pytest.raises(InvalidRequest, match=r"^format: 'MP4' is unknown; choose one of mp3,"):
        speech.to_bytes("MP4")
    (content,) = re.fullmatch(
        '<audio controls src="data:audio/mpeg;base64,(.*)"></audio>', speech._repr_html_()
    ).groups()
    assert soundfile.info(io.BytesIO(base64.b64decode(content))).duration > speech.duration_s


def test_speech_and_speech(tts):
    texts = "It is 5 past 9, and the ferry has left without its captain. " * 2, "Nobody saw it."
    one, other = (tts.speak(text, sampling=SHORT) for text in texts)
    both = one + other
    assert both.samples.tolist() == [*one.samples, *other.samples]
    assert [mark.text for mark in both.marks] == [mark.text for mark in (*one.marks, *other.marks)]
    joined = "".join(texts)
    assert all(joined[mark.start_character : mark.end_character] == mark.text for mark in both.marks)
    assert (both.marks[len(one.marks)].start_s, both.marks[-1].end_s) == pytest.approx(
        (one.duration_s, both.duration_s)
    )
    assert both.timings.total_s == one.timings.total_s + other.timings.total_s
    good, bad = Delivery(1.0, (), (), (), 0.2), Delivery(0.5, ("ferry",), ("skips",), (), 0.4)
    assert both.delivery is None
    assert (replace(one, delivery=good) + other).delivery == good
    assert (replace(one, delivery=good) + replace(other, delivery=bad)).delivery == joined_deliveries([good, bad])
    with pytest.raises(InvalidRequest, match="24000 and 16000 Hz cannot be joined"):
        one + vivavoce.Speech(other.samples, 16_000, other.timings)


def test_speech_is_played_by_a_package_or_a_program(tts, tmp_path, monkeypatch):
    speech, played = tts.speak("Hi.", sampling=SHORT), []
    (tmp_path / "paplay").write_text("#!/bin/sh\necho no daemon >&2\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    for mode in (0o600, 0o700):
        (tmp_path / "paplay").chmod(mode)
        with pytest.raises(
            MissingDependency, match=r"^play: nothing here could play it \(.*\); `pip install"
        ) as raised:
            speech.play()
        assert "\n" not in str(raised.value)
    assert "paplay: no daemon" in str(raised.value)
    (tmp_path / "aplay").write_text(f'#!/bin/sh\n/bin/cp "$2" {tmp_path}/heard.wav\n')
    (tmp_path / "aplay").chmod(0o700)
    speech.play()
    assert (tmp_path / "heard.wav").read_bytes() == speech.to_bytes()
    device = SimpleNamespace(play=lambda samples, rate, blocking: played.append((len(samples), rate, blocking)))
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    speech.play()
    assert played == [(len(speech.samples), RATE, True)]


def test_what_is_printed_is_short(tts, reference):
    speech, voice = tts.speak("Hello there.", sampling=SHORT), tts.voice(reference, "Hum.")
    assert repr(tts) == "Vivavoce('babble', cpu, float32)"
    assert repr(speech) == f"Speech({speech.duration_s:.2f} s, 24000 Hz, 1 segments)"
    assert re.fullmatch(r"Voice\('', \d+ speech tokens, \d+ text tokens\)", repr(voice))
    assert re.fullmatch(r"AudioChunk\(\d\.\d+ s, index 0, segment 0\)", repr(next(tts.stream("Hi.", sampling=SHORT))))
    assert len(repr(tts.statistics)) < 1_500


def test_former_names_of_arguments(tts, reference):
    voice = tts.voice(reference, prompt_text="Hum.")
    assert voice is tts.voice(reference, transcript="Hum.")
    assert tts.extract_voice(reference, prompt_text="Hum.").prompt_text == voice.prompt_text
    given = {"voice": reference, "sampling": SHORT}
    new = tts.speak("Hello.", **given, transcript="Hum.")
    assert np.array_equal(tts.speak("Hello.", **given, prompt_text="Hum.").samples, new.samples)
    assert len(list(tts.stream("Hello.", **given, prompt_text="Hum.")))
    assert tts.convert(reference, reference, prompt_text="Hum.").duration_s > 1
    slow = tts.speak("Hello.", **given, instructions="speak slowly")
    assert not np.array_equal(slow.samples, new.samples)
    assert np.array_equal(tts.speak("Hello.", **given, instruct="speak slowly").samples, slow.samples)


@pytest.mark.parametrize("mode", ["zero_shot", "cross_lingual", "sft"])
def test_modes_by_name(tts, reference, mode):
    assert tts.speak("Hi.", reference, transcript="Hum.", mode=mode, sampling=SHORT).duration_s > 0


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"text": ""}, InvalidText, "text"),
        ({"text": "a " * 500_000}, InvalidText, "20000"),
        ({"text": "你好世界"}, InvalidText, "Latin"),
        ({"voice": "nobody"}, VoiceNotFound, "nobody"),
        ({"voice": "missing.wav"}, VoiceNotFound, r"missing\.wav"),
        ({"voice": "babble-b", "transcript": "Hum."}, InvalidRequest, "^transcript: belongs"),
        ({"voice": hum(1.0)}, InvalidRequest, "ndarray"),
        ({"voice": io.StringIO("x")}, InvalidAudio, "text mode"),
        ({"voice": closed()}, InvalidAudio, r"^reference audio: the given data cannot be read \(.* closed file"),
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
