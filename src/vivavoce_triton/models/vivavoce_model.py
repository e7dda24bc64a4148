"""The model `vivavoce`: the whole engine in one instance. Requests share its batches.

The tensors are those of `cosyvoice2`, but the default of `reading` is natural, not official. One event loop serves all
streams. A few threads read texts and recordings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from vivavoce.api import Vivavoce
from vivavoce.checkpoint.settings import read_config
from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
from vivavoce.engine.handle import Handle
from vivavoce.engine.loop import STUCK_S
from vivavoce.engine.request import EngineRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.model_choice import choose_dtype, count_text_processes
from vivavoce.frontend.session import RequestSession
from vivavoce_triton.models.backend import AsyncModel, Inputs, Parameters, answer, check_present
from vivavoce_triton.models.speaking import RequestVoices, chunk_policy, read_request

_FRONT_THREADS = 4
"""Number of threads that normalise texts and extract voices beside the event loop. The engine has its own thread."""


class VivavoceModel(AsyncModel):
    """tts: the engine, closed with this model; policy: the rule for chunks, or None for whole responses."""

    def __init__(self, backend: Any, tts: Vivavoce, voices: RequestVoices, policy: ChunkPolicy | None) -> None:
        super().__init__(backend, "vivavoce-streams", decoupled=policy is not None)
        self._tts, self._voices, self._policy = tts, voices, policy
        self._fronts = ThreadPoolExecutor(_FRONT_THREADS, "vivavoce-front")

    @classmethod
    def load(cls, parameters: Parameters, backend: Any) -> VivavoceModel:
        """Load and warm up the engine; `VivavoceError`: a parameter, folder, device or voice cannot be used."""
        folder, policy, device = parameters.model_folder, chunk_policy(parameters), parameters.device
        config = read_config(folder, ())
        if policy is not None:
            policy = policy_for(config.generation, policy)
        told, rate = parameters.number("sample_rate", int, "the model's"), config.rates.sample_rate
        if told not in (None, rate):  # with a wrong rate, clients would play the audio too fast or too slowly
            raise InvalidRequest(f"sample_rate: {told} in config.pbtxt, but the model's rate is {rate}; write {rate}")
        parameters.switch("use_spk2info_cache")  # raise an error of this parameter before the model's slow loading
        names = {name: parameters[name] or "torch" for name in ("lm_backend", "flow_backend")}
        counts = {name: parameters.number(name, int, "a whole number") or 1 for name in ("trt_concurrent", "tp", "pp")}
        trusted: Any = parameters.switch("trust_model_code")
        settings = EngineSettings(**names, **counts, trust_model_code=trusted)  # type: ignore[arg-type]
        dtype, processes = choose_dtype("auto", device, folder), count_text_processes(None, device)
        tts = Vivavoce(*load_model(folder, (device,), dtype, settings=settings, text_processes=processes))
        extractor = tts.front_end.extractor
        voices = RequestVoices(parameters, extractor, extractor.fingerprint)
        tts.warm_up()
        return cls(backend, tts, voices, policy)

    def close(self) -> None:
        """Finish the accepted requests, then close the engine."""
        while wait(list(self._streams), timeout=1.0).not_done and self._tts.engine.stuck_s < STUCK_S:
            pass  # wait for requests, unless the device hangs
        self._fronts.shutdown()
        super().close()
        self._tts.close()

    async def answers(self, request: Any, left: Callable[[], bool]) -> AsyncGenerator[tuple[Any, bool], None]:
        begun = await asyncio.get_running_loop().run_in_executor(self._fronts, self._begin, request, left)
        if not isinstance(begun, RequestSession):
            async with self.watched(left, begun.cancel):
                spoken = await begun.result_async()
            yield answer(self._backend, waveform=spoken.samples[None]), True
            return
        try:
            async with self.watched(left, begun.handle.cancel):
                async for chunk in begun:
                    yield answer(self._backend, waveform=chunk.samples[None]), False
        finally:
            begun.close()

    def _begin(self, request: Any, left: Callable[[], bool]) -> RequestSession | Handle:
        check_present(left)
        self._tts.engine.check_load(streaming=self._policy is not None)
        wanted = read_request(Inputs(self._backend, request), "natural")
        if self._policy is not None:
            session = RequestSession(self._tts.engine, self._tts.front_end, self._policy)
            session.start(wanted.text, self._voices.of(wanted), wanted.options)
            return session
        segments = self._tts.front_end.requests(wanted.text, self._voices.of(wanted), wanted.options)
        return self._tts.engine.submit(EngineRequest(tuple(segments)))
