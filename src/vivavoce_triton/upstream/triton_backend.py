"""A speech backend that forwards requests to a Triton server with `vivavoce`, `cosyvoice2` or a similar model."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from typing_extensions import Unpack

from vivavoce.engine.request import AudioChunk, SamplingParams
from vivavoce.errors import (
    EngineStopped,
    Forbidden,
    InvalidRequest,
    InvalidText,
    ModelNotFound,
    StageFailed,
    VivavoceError,
)
from vivavoce.frontend.audio.decoding_process import DecodingProcess
from vivavoce.frontend.audio.samples import Samples
from vivavoce.frontend.speech import FinishReason, Mode, Recording, SegmentText, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo, VoiceOptions
from vivavoce.frontend.text.sentence_stream import Sentence, SentenceSplitter
from vivavoce.frontend.text.text_input import Reasoning, TextFilter
from vivavoce.frontend.voices.names import OPENAI_VOICES, NameRules, VoiceSummary
from vivavoce_textnorm import NormalizedText, is_speakable
from vivavoce_triton.client.utterance import Manner, Utterance
from vivavoce_triton.client.wire import Connection, ServedModel, ServerUnreachable, Tensor, refused, request_tensors
from vivavoce_triton.upstream.voices_folder import VoicesFolder, unknown, usable_reference

log = logging.getLogger(__name__)

Found = TypeVar("Found")

MODELS = ("vivavoce", "cosyvoice2", "cosyvoice3", "cosyvoice2_dit")
"""Names of models to try, in this order; the first model that the server has is used."""
SENTENCE_S = 300.0
"""Timeout of the request for one sentence, in seconds."""
CHECK_S = 5.0
"""Timeout of a readiness check, in seconds."""
FRESH_S = 2.0
"""Age in seconds at which the result of a readiness check is old."""


class _Call:
    """The request for one sentence. It is sent and its response is read at once, however slowly the client reads."""

    def __init__(self, sentence: Sentence, answer: AsyncGenerator[Samples, None]) -> None:
        self.sentence = sentence
        self.chunks: asyncio.Queue[Samples | None] = asyncio.Queue()
        """Chunks of audio [n], n ≥ 1, in order, then None."""
        self.reading = asyncio.create_task(self._read(answer))
        """A task that ends with the response, or fails with the response's error."""
        self.reading.add_done_callback(lambda reading: reading.cancelled() or reading.exception())

    async def _read(self, answer: AsyncGenerator[Samples, None]) -> None:
        try:
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    self.chunks.put_nowait(chunk)
        finally:
            self.chunks.put_nowait(None)


class TritonStream:
    """A `SpeechStream` that sends one request per sentence. It requests the next sentence when the audio of a sentence
    begins to arrive. ask: (sentence, its index) → audio; on_end: called once, when the stream ends.
    """

    def __init__(
        self,
        sample_rate: int,
        ask: Callable[[str, int], AsyncGenerator[Samples, None]],
        on_end: Callable[[TritonStream], None],
        reasoning: Reasoning = "silent",
    ) -> None:
        self.sample_rate = sample_rate
        self.verdict: Verdict | None = None
        self._ask, self._on_end = ask, on_end
        self._intake, self._splitter = TextFilter(reasoning), SentenceSplitter()
        self._sentences: asyncio.Queue[Sentence | None] = asyncio.Queue()
        self._calls: list[_Call] = []
        self._progress = Verdict(FinishReason.CANCELLED)

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        try:
            async for event in self._events():
                yield event
                if self.verdict is not None:
                    return
        except VivavoceError as error:
            if self.verdict is not None:
                return
            self._finish(replace(self._progress, reason=FinishReason.ERROR, error=str(error), error_code=error.code))
            raise
        self._finish(replace(self._progress, reason=FinishReason.STOP))

    async def push(self, text: str) -> None:
        self._add(self._splitter.add(self._intake.add(text)))

    async def end(self) -> None:
        self._add(self._splitter.add(self._intake.add("", is_last=True)))
        self._add(self._splitter.end())
        self._sentences.put_nowait(None)

    def cancel(self) -> None:
        self._finish(self._progress)

    def _add(self, sentences: Iterator[Sentence]) -> None:
        for sentence in sentences:
            if is_speakable(sentence.text):
                self._sentences.put_nowait(sentence)

    async def _events(self) -> AsyncIterator[SpeechEvent]:
        ahead: asyncio.Task[_Call | None] | None = None
        while (call := await (ahead or self._ask_next())) is not None:
            ahead = None
            index = self._progress.segments_given
            self._progress = replace(self._progress, segments_given=index + 1)
            start, end = map(self._intake.original, (call.sentence.start, call.sentence.end))
            yield SegmentText(index, start, end)
            while (samples := await call.chunks.get()) is not None:
                ahead = ahead or asyncio.create_task(self._ask_next())
                yield AudioChunk(samples, self.sample_rate, segment=index)
                audio_s = self._progress.audio_s + len(samples) / self.sample_rate
                self._progress = replace(self._progress, audio_s=audio_s)
            if self.verdict is not None:
                return  # the stream was cancelled
            await call.reading
            self._calls.remove(call)
            self._progress = replace(self._progress, segments_spoken=index + 1)
        if not self._progress.segments_given:
            raise _unspeakable()

    async def _ask_next(self) -> _Call | None:
        """Request the next sentence. Returns None if no sentence is left, or the stream has ended."""
        sentence = await self._sentences.get()
        if sentence is None or self.verdict is not None:
            return None
        call = _Call(sentence, self._ask(sentence.text, self._progress.segments_given))
        self._calls.append(call)
        return call

    def _finish(self, verdict: Verdict) -> None:
        """End the stream with this verdict, unless it has one already."""
        if self.verdict is not None:
            return
        self.verdict = verdict
        self._sentences.put_nowait(None)
        for call in self._calls:
            call.reading.cancel()
        self._on_end(self)


class TritonBackend:
    """A `SpeechBackend` on one event loop. Use `open` to create it."""

    stuck, voice_store = False, "ok"
    """A server that does not respond counts as not ready, never as stuck. The voice store, a folder, cannot fail."""

    def __init__(self, address: str, folder: VoicesFolder | None, clock: Callable[[], float]) -> None:
        self._address, self._folder, self._clock = address, folder, clock
        self._model: ServedModel
        self._connected = AsyncExitStack()
        self._speech, self._checks = Connection(address, SENTENCE_S), Connection(address, CHECK_S)
        self._ready, self._checked_at = True, clock()
        self._checking: asyncio.Task[None] | None = None
        self._streams: set[TritonStream] = set()
        self._closing = False
        self._folder_thread = ThreadPoolExecutor(1, thread_name_prefix="vivavoce-voices")
        """One thread, because the folder allows one reader at a time, and a read goes on if its caller is cancelled."""

        self._decoding_thread = ThreadPoolExecutor(1, thread_name_prefix="vivavoce-decoding")
        self._decoding: DecodingProcess

    @classmethod
    async def open(
        cls,
        address: str,
        reference_dir: str | Path | None,
        *,
        model: str | None = None,
        rules: NameRules = NameRules(),
        clock: Callable[[], float] = time.monotonic,
    ) -> TritonBackend:
        """Connect to triton://HOST:PORT (gRPC); the scheme is optional.

        reference_dir: folder with recordings of voices (see `voices_folder`), or None for only the model's own voice.
        model: its name, or None for the first of `MODELS` that is served. rules: for names that no recording has.

        EngineStopped: the server does not respond, or has no such model. ServerRefused: the model outputs no audio.
        InvalidRequest: the folder cannot be read. MissingDependency: tritonclient is not installed.
        """
        folder = None if reference_dir is None else await asyncio.to_thread(VoicesFolder, Path(reference_dir), rules)
        backend = cls(address.removeprefix("triton://").rstrip("/"), folder, clock)
        async with AsyncExitStack() as stack:
            for connection in (backend._speech, backend._checks):
                await stack.enter_async_context(connection)
            backend._model = await _first_of(backend._checks, (model,) if model else MODELS)
            backend._connected = stack.pop_all()
        backend._decoding = DecodingProcess()
        await asyncio.to_thread(backend._decoding.check)
        return backend

    @property
    def about(self) -> ModelInfo:
        model = self._model
        return ModelInfo(
            model.name,
            f"{model.name} of a Triton server",
            model.sample_rate,
            demo=False,
            instructions="instruct_text" in model.inputs,
        )

    @property
    def ready(self) -> bool:
        """Whether the last check found the server ready. If this check is old, another one starts in the background."""
        if not self._closing and self._clock() - self._checked_at >= FRESH_S:
            self._begin_check()
        return self._ready and not self._closing

    async def speak(self, request: SpeechRequest) -> TritonStream:
        self._check_open()
        if not self._ready:
            await asyncio.shield(self._begin_check())
            if not self._ready:
                raise _away()
        _refuse_foreign(request, self._model)
        if request.text is not None and not is_speakable(request.text):
            raise _unspeakable()
        reference, transcript = await self._voice_of(request.voice)
        transcript = _transcript_for(request, transcript, spoken_by_recording=reference is not None)
        model, identity = self._model, secrets.token_hex(8)
        takes_seed = request.seed != 0 or "seed" in model.inputs

        def tensors(sentence: str, index: int) -> Sequence[Tensor]:
            manner = Manner(
                instruct_text=request.instruct,
                seed=request.seed + index if takes_seed else None,
                speed=None if request.speed == 1.0 else request.speed,
                reading=request.reading if "reading" in model.inputs else None,
            )
            return request_tensors(Utterance("", sentence, None, transcript), manner, model, reference)

        def ask(sentence: str, index: int) -> AsyncGenerator[Samples, None]:
            return _answer(self._speech, model, tensors(sentence, index), f"{identity}-{index}")

        tensors("?", 0)  # raises errors for unsupported inputs before the stream starts
        stream = TritonStream(model.sample_rate, ask, self._on_end, request.reasoning)
        if request.text is not None:
            await stream.push(request.text)
            await stream.end()
        self._streams.add(stream)
        return stream

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        """Raise InvalidRequest, because the server does not return normalised text."""
        raise InvalidRequest(
            "input: the Triton server that speaks here normalises texts and does not return them; ask a server with "
            "a model of its own, or `vivavoce normalize`"
        )

    async def voices(self, owner: str) -> list[VoiceSummary]:
        if self._folder is None:
            return []
        return await self._in_folder(self._folder.voices)

    async def add_voice(
        self, owner: str, name: str, recording: Recording, **options: Unpack[VoiceOptions]
    ) -> VoiceSummary:
        raise self._read_only()

    async def remove_voice(self, owner: str, name: str) -> None:
        raise self._read_only()

    async def statistics(self) -> BackendStatistics | None:
        return None

    async def close(self) -> None:
        self._closing = True
        for stream in list(self._streams):
            stream.cancel()
        if self._checking is not None:
            self._checking.cancel()
        self._folder_thread.shutdown(wait=False)
        self._decoding_thread.shutdown(wait=False, cancel_futures=True)
        self._decoding.close()
        await self._connected.aclose()

    async def _voice_of(self, voice: str | Recording | None) -> tuple[Samples | None, str]:
        if isinstance(voice, Recording):
            given = (voice.content, "reference audio", self._decoding.decode)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._decoding_thread, usable_reference, *given), voice.transcript
        if self._folder is not None:
            return await self._in_folder(partial(self._folder.find, voice)) or (None, "")
        if voice is not None and voice not in OPENAI_VOICES:  # these names stand for the default voice
            raise unknown(voice, ())
        return None, ""

    async def _in_folder(self, look: Callable[[], Found]) -> Found:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._folder_thread, look)

    def _check_open(self) -> None:
        if self._closing:
            raise EngineStopped("server: it is shutting down; ask another one")

    def _read_only(self) -> Forbidden:
        if self._folder is None:
            return Forbidden("voices: this server has none of its own; start it with --reference-dir FOLDER")
        return Forbidden(
            "voices: they are the recordings of a folder and cannot be changed here; its owner adds NAME.wav and "
            "NAME.txt there"
        )

    def _on_end(self, stream: TritonStream) -> None:
        self._streams.discard(stream)
        if stream.verdict is not None and stream.verdict.error_code == EngineStopped.code:
            self._ready, self._checked_at = False, self._clock() - FRESH_S

    def _begin_check(self) -> asyncio.Task[None]:
        if self._checking is None:
            self._checking = asyncio.create_task(self._check())
        return self._checking

    async def _check(self) -> None:
        try:
            self._model, found = await self._checks.model(self._model.name), True
        except VivavoceError as error:
            found = False
            if self._ready:
                log.warning("upstream away: %(error)s", {"error": error})
        except Exception:
            found = False
            log.exception("upstream not understood: the Triton server's description of its model")
        finally:
            self._checking = None
        if found and not self._ready:
            log.info("upstream there: the Triton server at %(address)s answers", {"address": self._address})
        self._ready, self._checked_at = found, self._clock()


async def _answer(
    connection: Connection, model: ServedModel, tensors: Sequence[Tensor], request_id: str
) -> AsyncGenerator[Samples, None]:
    """Yield the audio [n], n ≥ 1, of one request. EngineStopped or ServerRefused may be raised after some audio."""
    silent = True
    try:
        # Read until the call ends, and do not cancel it after the final response; `Connection.speak` says why.
        async with aclosing(connection.speak(model, tensors, request_id, stream=model.decoupled)) as chunks:
            async for chunk in chunks:
                silent = False
                yield chunk
        if silent:
            raise refused(f"the model {model.name!r} gave no audio; see its log")
    except (ServerUnreachable, ModelNotFound) as error:
        log.warning("upstream away: %(error)s", {"error": error})
        raise _away() from None  # hide the server's address from clients
    except VivavoceError:
        raise
    except Exception:
        log.exception("upstream not understood: an answer from the model %(model)r", {"model": model.name})
        raise StageFailed("upstream: an internal error, which was logged; ask again") from None


async def _first_of(connection: Connection, names: tuple[str, ...]) -> ServedModel:
    missing: ModelNotFound | None = None
    for name in names:
        try:
            return await connection.model(name)
        except ModelNotFound as error:
            missing = error
        except ServerUnreachable as error:
            raise EngineStopped(f"upstream: {error}") from None
    raise EngineStopped(f"upstream: {missing}")


def _refuse_foreign(request: SpeechRequest, model: ServedModel) -> None:
    """Refuse a request with settings for which the model has no input."""
    unread = request.reading == "off" and "reading" not in model.inputs
    for field, given in (
        ("chunk_policy", request.policy),
        ("language", request.language),
        ("reading", "off" if unread else None),
        ("emojis", "named" if request.emojis == "named" else None),
        ("code", "silent" if request.code == "silent" else None),
        ("lexicon", "given" if request.lexicon else None),
        ("flow_steps", request.flow_steps),
        ("adapter", request.adapter),
        ("sampling", None if request.sampling == SamplingParams() else "given"),
    ):
        if given is not None:
            raise InvalidRequest(f"{field}: the Triton server behind this server does not support it; leave it out")


def _transcript_for(request: SpeechRequest, transcript: str, *, spoken_by_recording: bool) -> str:
    """Return the transcript to send for the request's mode. InvalidRequest: the mode is impossible.

    The server has no tensor for the mode. A recording with a transcript means zero_shot, without it cross_lingual.
    """
    mode = request.mode
    if request.instruct is not None:
        if mode not in (None, Mode.INSTRUCT):
            raise InvalidRequest(f"instruct: is not used in mode {Mode(mode).value}; leave the mode out")
    elif mode is Mode.INSTRUCT:
        raise InvalidRequest("mode: instruct needs an instruction; send one, or leave the mode out")
    if mode in (Mode.ZERO_SHOT, Mode.CROSS_LINGUAL) and not spoken_by_recording:
        raise InvalidRequest(
            f"mode: {Mode(mode).value} needs a recording, and the voice that speaks here has none; name another voice, "
            "send a recording, or leave the mode out"
        )
    if mode is Mode.ZERO_SHOT and not transcript:
        raise InvalidRequest("mode: zero_shot needs the recording's transcript; send it, or ask for cross_lingual")
    return "" if mode is Mode.CROSS_LINGUAL else transcript


def _away() -> EngineStopped:
    return EngineStopped("upstream: the Triton server behind this server is away; try again in some seconds")


def _unspeakable() -> InvalidText:
    return InvalidText("text: nothing in it can be spoken; write at least one word", nothing_to_say=True)
