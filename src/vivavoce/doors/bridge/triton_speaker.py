"""A speaker that is a Triton server elsewhere, which serves `vivavoce`, `cosyvoice2` or a model of that form."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from vivavoce.clients.triton.connection import Connection
from vivavoce.clients.triton.failures import ServerUnreachable
from vivavoce.clients.triton.model import ServedModel
from vivavoce.clients.triton.tensors import Samples, request_tensors
from vivavoce.clients.triton.utterance import Manner, Utterance
from vivavoce.doors.bridge.triton_stream import TritonStream
from vivavoce.doors.bridge.upstream_call import UpstreamCall, away
from vivavoce.doors.bridge.voices_folder import VoicesFolder, unknown, usable_reference
from vivavoce.errors import EngineStopped, Forbidden, InvalidRequest, InvalidText, ModelNotFound, VivavoceError
from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.host.order import Recording, Sampling, SpeechOrder
from vivavoce.service.host.speaker import ModelAbout, VoiceSummary
from vivavoce.service.text.checks import check_characters, check_length
from vivavoce.service.text.rules import is_speakable

log = logging.getLogger(__name__)

Found = TypeVar("Found")

MODELS = ("vivavoce", "cosyvoice2")
"""Which of a server's models speaks, if nobody says: the first that is there."""
DEFAULT_VOICE = "default"
"""A recording of this name is the voice of requests that name none; without it, the served model has its own."""
SENTENCE_S = 300.0
"""How long the server may take for one sentence."""
CHECK_S = 5.0
"""How long it may take to say that it is there."""
FRESH_S = 2.0
"""How long it is believed to be as it was found."""


class TritonSpeaker:
    """See `Speaker`. One event loop's; made by `open`."""

    def __init__(
        self,
        address: str,
        stack: AsyncExitStack,
        speech: Connection,
        checks: Connection,
        model: ServedModel,
        folder: VoicesFolder | None,
        clock: Callable[[], float],
    ) -> None:
        self._address, self._stack = address, stack
        self._speech, self._checks = speech, checks
        self._model, self._folder, self._clock = model, folder, clock
        self._ready, self._checked_at = True, clock()
        self._checking: asyncio.Task[None] | None = None
        self._streams: set[TritonStream] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False
        self._folder_thread = ThreadPoolExecutor(1, thread_name_prefix="vivavoce-voices")
        """The one in which the folder is looked at: who leaves meanwhile does not let the next one in beside it."""

    @classmethod
    async def open(
        cls,
        address: str,
        reference_dir: str | Path | None,
        *,
        model: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> TritonSpeaker:
        """Connect.

        Args:
            address: triton://HOST:PORT of the server's gRPC interface, the scheme may be left out.
            reference_dir: recordings that are voices (see `voices_folder`); None: the served model's own voice alone.
            model: by its name; None: the first of `MODELS` that is served.
            clock: seconds that never go back.

        Raises:
            EngineStopped: the server does not answer, or serves no such model.
            ServerRefused: the model gives no audio.
            InvalidRequest: the folder cannot be read.
            MissingDependency: tritonclient is not installed.
        """
        place = address.removeprefix("triton://").rstrip("/")
        folder = None if reference_dir is None else await asyncio.to_thread(VoicesFolder, Path(reference_dir))
        async with AsyncExitStack() as stack:
            speech = await stack.enter_async_context(Connection(place, SENTENCE_S))
            checks = await stack.enter_async_context(Connection(place, CHECK_S))
            served = await _first_of(checks, (model,) if model else MODELS)
            return cls(place, stack.pop_all(), speech, checks, served, folder, clock)

    @property
    def about(self) -> ModelAbout:
        """The served model, as it was found last."""
        return ModelAbout(
            self._model.name, f"{self._model.name} of a Triton server", self._model.sample_rate, demo=False
        )

    @property
    def ready(self) -> bool:
        """As it was found last; what was found too long ago is looked at again, for whoever asks next."""
        if not self._closing and self._checking is None and self._clock() - self._checked_at >= FRESH_S:
            self._begin_check()
        return self._ready and not self._closing

    async def speak(self, order: SpeechOrder) -> TritonStream:
        """See `Speaker`; what the served model has no input for is refused unless it is as by default."""
        self._check_open()
        if not self._ready:
            await asyncio.shield(self._checking or self._begin_check())
            if not self._ready:
                raise away()
        _refuse_foreign(order)
        if order.text is not None:
            check_length(order.text)
            check_characters(order.text)
            if not is_speakable(order.text):
                raise InvalidText("text: nothing in it can be spoken; write at least one word")
        reference, transcript = await self._voice_of(order.voice)
        model, identity = self._model, secrets.token_hex(8)

        def manner(place: int) -> Manner:
            takes_seed = order.seed != 0 or "seed" in model.inputs
            return Manner(
                instruct_text=order.instruct,
                seed=order.seed + place if takes_seed else None,
                speed=None if order.speed == 1.0 else order.speed,
            )

        def ask(sentence: str, place: int) -> UpstreamCall:
            tensors = request_tensors(Utterance("", sentence, None, transcript), manner(place), model, reference)
            return UpstreamCall(self._speech, model, tensors, f"{identity}-{place}")

        # What the model does not take is told now.
        request_tensors(Utterance("", "?", None, transcript), manner(0), model, reference)
        stream = TritonStream(order.text, model.sample_rate, ask, self._left)
        self._streams.add(stream)
        self._empty.clear()
        return stream

    async def voices(self, owner: str) -> list[VoiceSummary]:
        """Those of the folder, which everybody sees."""
        if self._folder is None:
            return []
        return await self._in_folder(self._folder.voices)

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        """Refused: the folder is its owner's."""
        raise self._read_only()

    async def remove_voice(self, owner: str, name: str) -> None:
        """Refused: the folder is its owner's."""
        raise self._read_only()

    async def statistics(self) -> SpeakerStatistics | None:
        """The Triton server has figures of its own."""
        return None

    async def close(self, drain_s: float) -> None:
        """See `Speaker`."""
        self._closing = True
        try:
            await asyncio.wait_for(self._empty.wait(), drain_s)
        except (TimeoutError, asyncio.TimeoutError):
            for stream in list(self._streams):
                stream.cancel()
        if self._checking is not None:
            self._checking.cancel()
        self._folder_thread.shutdown(wait=False)
        await self._stack.aclose()

    async def _voice_of(self, voice: str | Recording | None) -> tuple[Samples | None, str]:
        if isinstance(voice, Recording):
            samples = await asyncio.to_thread(usable_reference, voice.content, "reference audio")
            return samples, voice.transcript
        if self._folder is None:
            if voice is not None:
                raise unknown(voice, ())
            return None, ""
        if voice is not None:
            return await self._in_folder(partial(self._folder.named, voice))
        return await self._in_folder(partial(self._folder.find, DEFAULT_VOICE)) or (None, "")

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

    def _left(self, stream: TritonStream) -> None:
        self._streams.discard(stream)
        if not self._streams:
            self._empty.set()
        if stream.verdict is not None and stream.verdict.error_code == EngineStopped.code:
            self._ready, self._checked_at = False, self._clock() - FRESH_S

    def _begin_check(self) -> asyncio.Task[None]:
        self._checking = asyncio.create_task(self._check())
        return self._checking

    async def _check(self) -> None:
        """Whether the model is there, which may have changed meanwhile."""
        try:
            self._model, found = await self._checks.model(self._model.name), True
        except VivavoceError as error:
            found = False
            if self._ready:
                log.warning("upstream: %s", error)
        except Exception:
            found = False
            log.exception("upstream: what the Triton server says of its model could not be understood")
        finally:
            self._checking = None
        if found and not self._ready:
            log.info("upstream: the Triton server at %s is there", self._address)
        self._ready, self._checked_at = found, self._clock()


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


def _refuse_foreign(order: SpeechOrder) -> None:
    """Nothing upstream takes these."""
    for field, given in (
        ("mode", order.mode),
        ("chunk_policy", order.policy),
        ("language", order.language),
        ("sampling", None if order.sampling == Sampling() else "given"),
    ):
        if given is not None:
            raise InvalidRequest(f"{field}: the Triton server that speaks here does not take it; leave it out")
