"""The Python API: `tts = vivavoce.load(); tts.speak("Hello").save("hello.wav")`."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Literal, TypedDict, TypeVar, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import ModelCard
from vivavoce.engine.adapters import AdapterInfo
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import CostSnapshot
from vivavoce.engine.engine import Engine
from vivavoce.engine.loop import forked
from vivavoce.engine.request import EngineRequest, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.statistics import StatisticsSnapshot
from vivavoce.errors import InvalidRequest, InvalidText, RequestCancelled, VivavoceError, check_kind
from vivavoce.frontend.front_end import FrontEnd, PlannedSegment
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.model_choice import choose_device, choose_dtype, count_text_processes, model_folder
from vivavoce.frontend.session import RequestSession, Text
from vivavoce.frontend.speech import Mode, SpeakOptions, check_seed
from vivavoce.frontend.speech_result import PendingSpeech, Speech
from vivavoce.frontend.text.text_input import Code, Emojis, Normalization, Reasoning
from vivavoce.frontend.text_heads import know_heads
from vivavoce.frontend.text_threads import in_turn
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.registry import VoiceRegistry
from vivavoce.frontend.voices.stores import VoiceStore, open_voice_store
from vivavoce.frontend.voices.voice import Voice, built_in_voices, check_fits

_untrained = logging.getLogger("vivavoce.untrained")
"""Logs one warning: the model is untrained. A program that shows this to its users in another way may disable it."""
ChunkStream = RequestSession
"""The result of `stream` and `astream`."""
AnyVoice = Voice | AudioSource | None


class ReadingManner(TypedDict, total=False):
    """How a text is read: some of the keywords of `Vivavoce.speak`."""

    language: str | None
    reading: Normalization
    lexicon: Mapping[str, str]
    emojis: Emojis
    code: Code
    reasoning: Reasoning


class Manner(ReadingManner, total=False):
    """Keywords that say how a text is spoken; `Vivavoce.speak` explains them, and all methods that speak take them."""

    transcript: str
    mode: Mode | str | None
    instructions: str | None
    speed: float
    seed: int
    sampling: SamplingParams | None
    word_times: bool
    guard: bool | None
    flow_steps: Literal["official", "fast"] | None
    adapter: str | None
    prompt_text: str
    instruct: str | None
    options: SpeakOptions


Result = TypeVar("Result")
_INTERNAL = {"transcript": "prompt_text", "instructions": "instruct"}


def load(
    model: str | Path | None = None,
    *,
    device: str | Sequence[str] = "auto",
    dtype: str = "auto",
    variant: str | None = None,
    voices: str | Path | None = None,
    settings: EngineSettings | None = None,
    text_processes: int | None = None,
) -> Vivavoce:
    """Load a model and its voices.

    Args:
        model: an official CosyVoice2 folder, or the name of a downloaded model ("CosyVoice2-0.5B"). None: the
            mini model in the package, a demo that speaks English and shows how the program works.
        device: "auto" (a CUDA device if there is one), "cpu", "cuda", "cuda:1"; "mps" is untested. With a list, such
            as ["cuda:0", "cuda:1"], each device has an engine in its own process; if one ends, its requests fail.
        dtype: "auto" (float16 on CUDA, else float32), "float32", "bfloat16", "float16"; for language model and flow.
        variant: load `llm.VARIANT.pt`, `flow.VARIANT.pt` and `hift.VARIANT.pt` where the folder has them.
        voices: folder of stored voices, or the URL of a Redis server (`redis://host`); None: the user's own folder.
        settings: slots, memory and admission of the engine. None: the sizes fit the device, and requests wait for room.
        text_processes: number of processes that turn numbers, dates and units into words, so that this work does not
            delay the engine; None: two to four on CUDA, none on other devices.

    On CUDA, cuDNN's attention is switched off for the whole process, because it makes a new plan for every new length.

    Raises:
        VivavoceError: the model or the device cannot be used; the message says why and what to do.
    """
    check_kind("settings", settings, EngineSettings | None, "such as vivavoce.EngineSettings(slots=1)")
    check_kind("device", device, str | Iterable, 'name one, such as "cpu", or a list of them')
    store = open_voice_store(voices)
    devices = tuple(choose_device(name) for name in ([device] if isinstance(device, str) else device))
    if not devices:
        raise InvalidRequest("device: the list is empty; name a device, or leave it out")
    processes = count_text_processes(text_processes, devices[0], on_cpu=0)
    folder = model_folder(model)
    chosen = choose_dtype(dtype, devices[0], folder)
    engine, front_end = load_model(folder, devices, chosen, variant, settings or EngineSettings(), processes)
    card = front_end.card
    if not card.trained:
        _untrained.warning("model: %(name)s is %(what)s", {"name": card.name, "what": card.description})
    return Vivavoce(engine, front_end, store)


class Vivavoce:
    """A loaded model that speaks; `load` returns it.

    A voice is given as a recording (path, bytes, open file, `Audio`, or (array, rate)) with its words in `transcript`,
    as the name of a stored or built-in voice, or as a `Voice`; None is the model's first built-in voice.
    """

    def __init__(self, engine: Engine, front_end: FrontEnd, store: VoiceStore | None = None) -> None:
        self._engine, self._front_end, self._process = engine, front_end, os.getpid()
        self.store = store or open_voice_store(None)
        """The store of voices, by name."""
        self._registry = VoiceRegistry(
            front_end.extractor, self.store, built_in_voices(front_end.folder), front_end.extractor.fingerprint
        )
        self.card: ModelCard = front_end.card
        """The model's name and description."""
        self.generation: Generation = front_end.config.generation
        """The generation of the CosyVoice family."""
        self.sample_rate: int = front_end.config.rates.sample_rate
        """Samples per second of all audio that comes out."""
        self.device: torch.device = engine.models.device
        """The device of the networks; the first one if there are several."""
        self.dtype: torch.dtype = engine.models.dtype
        """Precision of language model and flow."""

    @property
    def engine(self) -> Engine:
        """The engine, which runs the networks. EngineStopped: this process was forked after the model was loaded."""
        self._check_process()
        return self._engine

    @property
    def front_end(self) -> FrontEnd:
        """The reader of texts and recordings. EngineStopped: this process was forked after the model was loaded."""
        self._check_process()
        return self._front_end

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise forked()

    @property
    def statistics(self) -> StatisticsSnapshot:
        """The engine's counters: batches, queues, slots, underruns."""
        return self.engine.statistics

    @property
    def costs(self) -> CostSnapshot:
        """The measured cost of each stage's batches by their size; admission uses it to plan."""
        return self.engine.costs

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        """Prepare for the first request: load the tables of text normalisation, record the stages' CUDA graphs on a
        CUDA device, and measure the costs with which admission and deadlines are planned.

        streams: number of concurrent low_latency streams. Only their CUDA graphs are recorded now, which takes less
        time; other graphs are recorded at their first use. None: record all graphs. InvalidRequest: below 1.
        """
        self.front_end.text.warm_up()
        self.engine.warm_up(seconds, streams)

    def __repr__(self) -> str:
        return f"Vivavoce({self.card.name!r}, {self.device}, {str(self.dtype).removeprefix('torch.')})"

    def close(self) -> None:
        """Finish the open requests and stop the engine; this object cannot speak afterwards.

        If the device takes 300 s for one step, the open requests end with EngineStopped. In a process that was forked
        after the model was loaded, this method does nothing, because the parent process owns the engine.
        """
        if os.getpid() != self._process:
            return
        self.engine.close()
        self.front_end.text.close()

    def __enter__(self) -> Vivavoce:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load_adapter(self, name: str, folder: str | Path) -> AdapterInfo:
        """Load a LoRA adapter of the language model from a folder that PEFT has written. Requests choose it by `name`.
        `EngineSettings.max_adapters` limits the number of adapters. Errors are those of `Engine.load_adapter`.
        """
        return self.engine.load_adapter(name, folder)

    def remove_adapter(self, name: str) -> None:
        """Unload an adapter; running requests with it continue. AdapterNotFound: the name is not loaded."""
        self.engine.remove_adapter(name)

    def voices(self) -> list[str]:
        """Return the names of all voices that `speak` can use: stored ones and built-in ones."""
        return self._registry.names()

    def voice(self, voice: AnyVoice = None, transcript: str = "", *, prompt_text: str = "") -> Voice:
        """Return the voice that `speak` would use for these arguments; prompt_text: the former name of `transcript`.

        Voices of recent recordings are cached, so do not change a voice's tensors.

        Raises:
            VoiceNotFound: `voice` is neither the name of a voice nor a file.
            InvalidRequest: the voice fits another model, a transcript has no recording, or no voice is built in.
            InvalidAudio, InvalidText: the recording or its transcript cannot be used.
        """
        self._check_process()
        return self._registry.resolve(voice, transcript or prompt_text)

    def normalize(self, text: str, **manner: Unpack[ReadingManner]) -> str:
        """Return the text as it is spoken: "It is 11:42." becomes "It is eleven forty two."; "" for white space.

        manner: language, reading, lexicon, emojis, code, reasoning, as in `speak`. InvalidText: the text is longer than
        20,000 characters, or has characters that the model does not know.
        """
        _refuse_unknown(manner, ReadingManner.__annotations__)
        how = SpeakOptions(**manner)
        return self.front_end.text.explain(text, how.language, how.reading, how.natural, how.reasoning).spoken

    def check(self, text: str) -> None:
        """Check a text of any length. InvalidText: the model cannot speak some characters, which the message names."""
        self.front_end.text.check(text)

    def embed(self, source: AudioSource) -> Tensor:
        """Return the speaker embedding of 0.5 to 30 s of speech: [192] float32, not normalised.

        Embeddings of one speaker point in similar directions: compare them by cosine. InvalidAudio: the source is
        unreadable, too short, too long, silent or not finite.
        """
        return self.front_end.extractor.embedding(source)

    def speak(
        self, text: str, voice: AnyVoice = None, *, cancel: Event | None = None, **manner: Unpack[Manner]
    ) -> Speech:
        """Speak a text of up to 20,000 characters; `marks` of the result give the time of each segment of the text.

        A text without words, such as "👍", gives 0.2 s of silence; an empty text is refused.

        Args:
            text: what to say; numbers, dates and units are read out.
            voice: a voice in one of the forms that the class lists.
            cancel: an event; set it in another thread to cancel the speech. Ctrl-C cancels the speech, too.

        Keywords of the manner:
            transcript: the words of the voice's recording; without them only the voice is cloned, not its manner.
            mode: zero_shot, cross_lingual, instruct or sft; None: instruct with `instructions`, else the voice decides.
            instructions: how to say it, in words.
            speed: 0.5 … 2.0.
            seed: the same seed gives the same audio; `stream` gives other audio, as it computes attention in chunks.
            sampling: how to sample speech tokens; None: as the model's own configuration says.
            language: the text's language, one of nine codes ("en", "zh", "de", …); None: detected from the text.
            reading: the rules that read numbers and signs: natural, official or off.
            lexicon: words → pronunciations. The keywords lexicon, emojis and code need the natural rules.
            emojis: silent or named.
            code: read or silent, for code between backticks.
            reasoning: silent or read, for text between <think> and </think> in the output of a language model.
            word_times: give the time of each word, in `Speech.words` or the `words` of chunks; the first use of a model
                searches for the attention heads that follow the text.
            guard: detect speech that deviates from its text (repeats, skips, loops, ends early), and speak that part
                again with another seed; `Speech.delivery` reports it. None: only for the model mini.
            flow_steps: official (ten Euler steps, or as many as the model's card says) or fast (three midpoint steps);
                None: as the engine's settings say. CosyVoice 1 has only official steps.
            adapter: name of a loaded LoRA adapter of the language model (`load_adapter`); "none": no adapter; None: the
                adapter that the voice names, if any.
            prompt_text, instruct: former names of transcript and instructions.
            options: all keywords except the transcript in one value; other keywords override its fields.

        Raises:
            RequestCancelled: `cancel` was set.
            TypeError: a keyword is unknown.
            VivavoceError: bad input; the message names the field, the limit and the value.
        """
        return self._begin(text, *self._read(voice, manner), cancel).result(cancel)

    @overload
    def speak_many(
        self, texts: Iterable[str], voice: AnyVoice = None, *, errors: Literal["raise"] = "raise",
        cancel: Event | None = None, **manner: Unpack[Manner],
    ) -> Iterator[Speech]: ...  # fmt: skip

    @overload
    def speak_many(
        self, texts: Iterable[str], voice: AnyVoice = None, *, errors: Literal["return"],
        cancel: Event | None = None, **manner: Unpack[Manner],
    ) -> Iterator[Speech | VivavoceError]: ...  # fmt: skip

    def speak_many(
        self, texts: Iterable[str], voice: AnyVoice = None, *, errors: Literal["raise", "return"] = "raise",
        cancel: Event | None = None, **manner: Unpack[Manner],
    ) -> Iterator[Speech | VivavoceError]:  # fmt: skip
        """Speak several texts, batched together in the engine; results keep their order. Arguments as in `speak`.

        The iterator reads the next text only when the engine has room, so `texts` may be of any length. A text that
        cannot be spoken raises its error after the speech of the texts before it. Deleting the iterator cancels all
        texts whose speech it has not returned.

        errors: with "return", a text that cannot be spoken gives its VivavoceError in its place; the others are spoken.
        """
        if isinstance(texts, str):
            raise InvalidText("texts: is one text; give a list of texts, or use speak")
        if errors not in ("raise", "return"):
            raise InvalidRequest(f"errors: {errors!r} is unknown; use raise or return")
        check_kind("texts", texts, Iterable, "give a list of texts, or use speak")
        find_voice, chosen = self._read(voice, manner)
        return self._speak_many(texts, find_voice(), chosen, cancel, errors == "return")

    def _speak_many(
        self, texts: Iterable[str], voice: Voice, options: SpeakOptions, cancel: Event | None, keep_errors: bool
    ) -> Iterator[Speech | VivavoceError]:
        waiting: deque[PendingSpeech | VivavoceError] = deque()

        def attempt(work: Callable[[], Result]) -> Result | VivavoceError:
            try:
                return work()
            except VivavoceError as error:
                if not keep_errors or isinstance(error, RequestCancelled):
                    raise
                return error

        def ready(most: int) -> Iterator[Speech | VivavoceError]:
            while waiting and (len(waiting) > most or isinstance(waiting[0], VivavoceError) or waiting[0].handle.done):
                one = waiting.popleft()
                yield one if isinstance(one, VivavoceError) else attempt(functools.partial(one.result, cancel))

        try:
            for text in texts:
                try:
                    waiting.append(attempt(functools.partial(self._begin, text, lambda: voice, options, cancel)))
                except InvalidRequest:
                    yield from ready(0)  # speech of the texts before the refused one
                    raise
                yield from ready(self.engine.memory.slots)
            yield from ready(0)
        finally:
            for one in waiting:
                if not isinstance(one, VivavoceError):
                    one.handle.cancel()

    async def aspeak(self, text: str, voice: AnyVoice = None, **manner: Unpack[Manner]) -> Speech:
        """`speak` for asyncio, without blocking the event loop; cancelling the task cancels the speech."""
        cancel, how = Event(), self._read(voice, manner)
        pending = await in_turn(lambda: self._begin(text, *how, cancel), cancel.set)
        return await pending.result_async()

    def stream(
        self,
        text: str | Iterable[str],
        voice: AnyVoice = None,
        *,
        policy: ChunkPolicy | None = None,
        **manner: Unpack[Manner],
    ) -> ChunkStream:
        """Speak in chunks, each as soon as it is made; arguments as in `speak`. The stream's `marks` give the
        time of each segment of the text. Closing or deleting the stream cancels it.

        `text` may be an iterable of pieces, such as a language model's output: speech starts while they arrive.
        Bad input raises its error in this call; a bad piece of an iterable raises its error when the piece arrives.
        """
        find_voice, chosen = self._read(voice, manner)
        engine = self.engine
        session = RequestSession(engine, self._front_end, policy)
        engine.check_load(streaming=True)
        session.start(text, find_voice(), chosen, silent=True)
        return session

    def astream(
        self, text: Text, voice: AnyVoice = None, *, policy: ChunkPolicy | None = None, **manner: Unpack[Manner]
    ) -> ChunkStream:
        """`stream` for an event loop: `async for chunk in tts.astream(pieces)`; `text` may be an async iterable, too.

        The work starts when the first chunk is asked for, and bad input is refused at that point. The event loop is
        never blocked: threads read texts, recordings and stored voices. Cancelling the task, or calling `aclose`,
        cancels the speech.
        """
        find_voice, chosen = self._read(voice, manner)

        def start(session: RequestSession) -> None:
            self.engine.check_load(streaming=True)
            session.start(text, find_voice(), chosen, silent=True)

        return RequestSession(self.engine, self.front_end, policy, start)

    def convert(
        self,
        source: AudioSource,
        voice: AnyVoice = None,
        *,
        transcript: str = "",
        speed: float = 1.0,
        seed: int = 0,
        prompt_text: str = "",
    ) -> Speech:
        """Say the words of a recording (30 s at most) in another voice; transcript: words of the voice's recording."""
        target, started = self.voice(voice, transcript or prompt_text), time.perf_counter()
        check_seed(seed)
        check_fits(target, self.front_end.config)
        return self._submit([self.front_end.plan_conversion(source, target, speed, seed)], started).result()

    def extract_voice(
        self,
        source: AudioSource,
        transcript: str = "",
        *,
        name: str = "",
        prompt_text: str = "",
        as_recorded: bool = False,
        consent: Consent | None = None,
    ) -> Voice:
        """Extract a voice from 0.5 to 30 s of speech. `tts.store.save(voice)` stores it together with the recording.

        as_recorded: use the recording unchanged, as the official code does: with its silent ends and its level.
        consent: the uses that the recorded person allows.
        """
        extractor = replace(self.front_end.extractor, as_recorded=as_recorded)
        return replace(extractor.extract_to_keep(source, transcript or prompt_text), name=name, consent=consent)

    def _read(self, voice: AnyVoice, manner: Manner) -> tuple[Callable[[], Voice], SpeakOptions]:
        """Return a function that finds the voice (it may block), and the options."""
        _refuse_unknown(manner, Manner.__annotations__)
        given: dict[str, Any] = {}
        for name, value in manner.items():
            first = given.setdefault(_INTERNAL.get(name, name), value)
            if first is not value and first != value:
                raise InvalidRequest(f"{name}: this keyword has two names, and both were given; leave one out")
        find_voice = functools.partial(self._registry.resolve, voice, given.pop("prompt_text", ""))
        if given.get("sampling") is None:
            given.pop("sampling", None)
        options = given.pop("options", None)
        if options is None:
            return find_voice, SpeakOptions(**given)
        check_kind("options", options, SpeakOptions, "give keywords, such as speed=1.2")
        return find_voice, replace(options, **given) if given else options

    def _begin(
        self, text: str, find_voice: Callable[[], Voice], options: SpeakOptions, cancel: Event | None
    ) -> PendingSpeech:
        if cancel is not None and not hasattr(cancel, "is_set"):
            raise InvalidRequest(f"cancel: {cancel!r} is not an event; give a threading.Event")
        is_cancelled = (cancel or Event()).is_set
        if is_cancelled():
            raise RequestCancelled("request: was cancelled")
        self.engine.check_load(streaming=False)
        voice, started, options = find_voice(), time.perf_counter(), self.front_end.resolved(options)
        if options.follows:
            know_heads(self.engine, self.front_end)
        planned = list(self.front_end.plan(text, voice, options, is_cancelled, silent=True))
        if is_cancelled():
            raise RequestCancelled("request: was cancelled")
        pending = self._submit([one.request for one in planned], started, text, planned)
        heads = self.engine.text_heads if options.follows else None
        return replace(pending, word_times=options.word_times, pace=heads.pace if heads else None)

    def _submit(
        self, requests: Sequence[SegmentRequest], started: float, text: str = "", planned: Sequence[PlannedSegment] = ()
    ) -> PendingSpeech:
        text_s = time.perf_counter() - started
        handle = self.engine.submit(EngineRequest(tuple(requests)))
        return PendingSpeech(handle, self.sample_rate, text_s, text, planned, self.card.name)


def _refuse_unknown(manner: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in manner.keys() - set(known):
        near = difflib.get_close_matches(name, [*known, "voice", "cancel", "policy"], 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keywords are {', '.join(sorted(known))}"
        raise TypeError(f"{name!r} is an unexpected keyword; {hint}")
