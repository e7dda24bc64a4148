"""The model `vivavoce`: the whole engine in one instance, whose batches all requests share.

The tensors are those of `cosyvoice2`. One event loop serves all streams; a few threads read texts and recordings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.language_model.event_loop import EventLoopThread
from vivavoce.doors.triton.models.presence import Presence
from vivavoce.doors.triton.models.replies import end, refusal
from vivavoce.doors.triton.models.request_voices import RequestVoices, open_voices
from vivavoce.doors.triton.models.speaking_parameters import SpeakingParameters
from vivavoce.doors.triton.models.spoken_request import SpokenRequest, read_request
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.handle import Handle
from vivavoce.engine.request import SpeechRequest
from vivavoce.errors import RequestCancelled
from vivavoce.service.placement import choose_device, choose_dtype, count_text_processes
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer

_FRONT_THREADS = 4
"""They read texts and extract voices, which would hold up the event loop; networks run in the engine's thread."""


class VivavoceModel:
    """The one instance.

    Streaming, `execute` returns at once and audio is sent as it is made; otherwise it returns whole answers.

    Args:
        backend: `triton_python_backend_utils`.
        synthesizer: the loaded model; closed with this.
        voices: who may speak.
        policy: how streams are cut; None: not streaming.
    """

    def __init__(
        self, backend: Any, synthesizer: Synthesizer, voices: RequestVoices, policy: ChunkPolicy | None
    ) -> None:
        self._backend, self._synthesizer, self._voices, self._policy = backend, synthesizer, voices, policy
        self._fronts = ThreadPoolExecutor(_FRONT_THREADS, "vivavoce-front")
        self._loop, self._presence = EventLoopThread("vivavoce-streams"), Presence()
        self._streams: set[Future[None]] = set()

    @classmethod
    def load(cls, args: Mapping[str, str], backend: Any) -> VivavoceModel:
        """Load and warm up the engine from what Triton hands to `initialize`.

        Raises:
            VivavoceError: a parameter, the model folder, the device or a voice cannot be used.
        """
        parameters = SpeakingParameters.read(args)
        device = choose_device(parameters.device)
        dtype, processes = choose_dtype("auto", device), count_text_processes(None, device)
        synthesizer = Synthesizer.load(parameters.folder, device, dtype, text_processes=processes)
        extractor = synthesizer.extractor
        voices = open_voices(parameters, extractor, extractor.fingerprint)
        synthesizer.engine.warm_up()
        return cls(backend, synthesizer, voices, parameters.policy if parameters.decoupled else None)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests; streaming: None, and the answers are sent by and by."""
        if self._policy is None:
            begun = list(self._fronts.map(self._begin_whole, requests))
            made = [self._loop.run(self._whole(*one)) for one in zip(requests, begun, strict=True)]
            return [one.result() for one in made]
        for request in requests:
            running = self._loop.run(self._stream(request, request.get_response_sender(), self._policy))
            self._streams.add(running)
            running.add_done_callback(self._streams.discard)
        return None

    def close(self) -> None:
        """Finish what was taken, and end the engine."""
        wait(list(self._streams))
        self._fronts.shutdown()
        self._loop.close()
        self._presence.close()
        self._synthesizer.close()

    async def _stream(self, request: Any, sender: Any, policy: ChunkPolicy) -> None:
        try:
            loop = asyncio.get_running_loop()
            handle = await loop.run_in_executor(self._fronts, self._begin, request, sender, policy)
            try:
                async with self._presence.watched(sender.is_cancelled, handle.cancel):
                    async for chunk in handle:
                        sender.send(wire.answer(self._backend, waveform=chunk.samples[None]))
            finally:
                handle.cancel()
        except Exception as error:
            end(self._backend, sender, error)
        else:
            end(self._backend, sender)

    def _begin(self, request: Any, sender: Any, policy: ChunkPolicy) -> Handle:
        """Hand a stream to the engine."""
        _check(sender)
        self._synthesizer.engine.check_load(streaming=True)
        wanted = read_request(self._backend, request)
        return self._synthesizer.stream(wanted.text, self._voices.of(wanted), _options(wanted), policy)

    def _begin_whole(self, request: Any) -> Handle | Exception:
        """Hand a request to the engine whose audio is wanted as a whole; what cannot be is the request's own error."""
        try:
            _check(request)
            self._synthesizer.engine.check_load(streaming=False)
            wanted = read_request(self._backend, request)
            segments = self._synthesizer.requests(wanted.text, self._voices.of(wanted), _options(wanted))
            return self._synthesizer.engine.submit(SpeechRequest(tuple(segments)))
        except Exception as error:
            return error

    async def _whole(self, request: Any, begun: Handle | Exception) -> Any:
        try:
            if isinstance(begun, Exception):
                raise begun
            async with self._presence.watched(request.is_cancelled, begun.cancel):
                spoken = await begun.result_async()
            return wire.answer(self._backend, waveform=spoken.samples[None])
        except Exception as error:
            return refusal(self._backend, error)


def _options(wanted: SpokenRequest) -> SpeakOptions:
    return SpeakOptions(instruct=wanted.instruct or None, seed=wanted.seed, speed=wanted.speed)


def _check(asked: Any) -> None:
    """asked: a request, or what sends its answers."""
    if asked.is_cancelled():
        raise RequestCancelled("request: its client has left")
