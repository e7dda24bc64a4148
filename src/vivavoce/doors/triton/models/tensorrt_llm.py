"""The model `tensorrt_llm` in Python: merged ids in, merged ids of speech tokens out.

The tensors are those of TensorRT-LLM's own backend, which is another flavour of the same model. What becomes of each
input is told in `language_model/input_rules.py`. Of the outputs there are

- `output_ids` [1, 1, n] INT32: new ids, in a stream those since the last answer. An id that ends speech is not among
  them: as TensorRT-LLM's backend does, and as its published clients expect, which take all ids for speech;
- `sequence_length` [1, 1] INT32: n;
- `batch_index`, `sequence_index` [1, 1] INT32: 0, since a request is one sequence.

Decoupled with `streaming`, ids are sent as they come; the last answer carries the final flag and may have no ids.
Decoupled without it there is one answer. A client that leaves ends its request; so does a request with `stop` and the
same id, for callers inside the server whose own leaving the server does not pass on. Not decoupled, the requests of a
batch are decoded together and answered when all are done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from vivavoce.doors.triton import wire
from vivavoce.doors.triton.models.language_model.event_loop import EventLoopThread
from vivavoce.doors.triton.models.language_model.inputs import Ask, InputReader
from vivavoce.doors.triton.models.language_model.source import Flavour, TokenSource, TokenStream
from vivavoce.doors.triton.models.presence import Presence
from vivavoce.doors.triton.models.replies import end
from vivavoce.errors import EngineStopped, InvalidRequest, RequestCancelled

_SWITCHES = {"true": True, "1": True, "false": False, "0": False, "": False}


class TensorrtLLM:
    """Serves a `TokenSource`.

    Args:
        backend: `triton_python_backend_utils`.
        source: what draws the tokens; closed with the model.
        reader: of requests.
        batched: tensors have a batch dimension.
    """

    def __init__(self, backend: Any, source: TokenSource, reader: InputReader, *, batched: bool) -> None:
        self._backend, self._source, self._reader = backend, source, reader
        self._leading = (1, 1) if batched else (1,)
        self._loop, self._presence = EventLoopThread("vivavoce-tensorrt-llm"), Presence()
        self._running: dict[str, set[TokenStream]] = {}
        """By request id, for `stop`; the event loop's alone."""

    @classmethod
    def load(cls, args: Mapping[str, Any], backend: Any) -> TensorrtLLM:
        """From what Triton's `initialize` is given.

        Parameters: llm_backend (vivavoce, llmapi), exclude_input_in_output, and those of `load_engine_source` or
        `load_llm_source`.

        Raises:
            VivavoceError: a parameter, a folder, the device or the runtime cannot be used.
        """
        config = json.loads(args["model_config"])
        parameters = wire.parameters(config)
        flavour = _flavour(parameters.get("llm_backend", Flavour.VIVAVOCE.value))
        excludes = _switch(parameters, "exclude_input_in_output")
        decoupled = bool(backend.using_decoupled_model_transaction_policy(config))
        most = int(config.get("max_batch_size", 0))
        source = _load_source(flavour, parameters, max(1, most))
        reader = InputReader(backend, flavour, source.vocabulary, decoupled=decoupled, excludes_prompt=excludes)
        return cls(backend, source, reader, batched=most > 0)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer a batch; decoupled: begin with it, and return at once."""
        if self._reader.decoupled:
            for request in requests:
                self._begin(request)
            return None
        begun = [self._loop.run(self._whole(request)) for request in requests]
        return [one.result() for one in begun]

    def close(self) -> None:
        """End what runs; nothing may be asked after it."""
        self._loop.close()
        self._presence.close()
        self._source.close()

    def _begin(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            if self._reader.wants_stop(request):
                self._loop.run(self._stop(request.request_id(), sender))
                return
            ask = self._reader.read(request)
        except Exception as error:
            end(self._backend, sender, error)
            return
        self._loop.run(self._serve(ask, request.request_id(), sender))

    async def _stop(self, request_id: str, sender: Any) -> None:
        for stream in self._running.get(request_id, ()):
            stream.cancel()
        end(self._backend, sender)

    async def _serve(self, ask: Ask, request_id: str, sender: Any) -> None:
        """Send a request's answers."""
        final = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            if ask.streaming:
                await self._draw(ask, request_id, sender.is_cancelled, lambda ids: sender.send(self._answer(ask, ids)))
                sender.send(self._answer(ask, []), flags=final)
            else:
                ids = await self._all(ask, request_id, sender.is_cancelled)
                sender.send(self._answer(ask, ids), flags=final)
        except RequestCancelled:  # nobody listens, or somebody wants no more
            end(self._backend, sender)
        except asyncio.CancelledError:
            end(self._backend, sender, EngineStopped("server: the model is being unloaded; send the request again"))
        except Exception as error:
            end(self._backend, sender, error)

    async def _whole(self, request: Any) -> Any:
        """A request's one answer."""
        try:
            ask = self._reader.read(request)
            return self._answer(ask, await self._all(ask, request.request_id(), request.is_cancelled))
        except Exception as error:
            return wire.refusal(self._backend, error)

    async def _all(self, ask: Ask, request_id: str, left: Callable[[], bool]) -> list[int]:
        ids = list(ask.prompt) if ask.with_prompt else []
        await self._draw(ask, request_id, left, ids.extend)
        return ids

    async def _draw(
        self, ask: Ask, request_id: str, left: Callable[[], bool], take: Callable[[list[int]], object]
    ) -> None:
        """Hand over ids as they come. left: whether nobody listens any more.

        Raises:
            RequestCancelled: nobody does, or the request was stopped.
        """
        stream = self._source.start(ask.prompt, ask.sampling)
        same_id = self._running.setdefault(request_id, set())
        same_id.add(stream)
        try:
            async with self._presence.watched(left, stream.cancel), aclosing(stream.__aiter__()) as pieces:
                async for ids in pieces:
                    take(ids)
        finally:
            stream.cancel()
            same_id.discard(stream)
            if not same_id:
                self._running.pop(request_id, None)

    def _answer(self, ask: Ask, ids: Sequence[int]) -> Any:
        leading = self._leading
        tensors = {
            "output_ids": np.array(ids, np.int32).reshape(*leading, len(ids)),
            "sequence_length": np.full(leading, len(ids), np.int32),
            "batch_index": np.zeros(leading, np.int32),
            "sequence_index": np.zeros(leading, np.int32),
        }
        # A sender frees outputs that nobody asked for without holding Python's lock (seen in 2.51), under the feet of
        # every other thread: it gets none.
        wanted = ask.outputs or tensors.keys()
        return wire.answer(self._backend, **{name: tensor for name, tensor in tensors.items() if name in wanted})


def _load_source(flavour: Flavour, parameters: Mapping[str, str], most: int) -> TokenSource:
    # Either runtime takes seconds to import.
    if flavour is Flavour.VIVAVOCE:
        from vivavoce.doors.triton.models.language_model.engine_source import load_engine_source

        return load_engine_source(parameters, most)
    from vivavoce.doors.triton.models.language_model.llmapi_source import load_llm_source

    return load_llm_source(parameters, most)


def _flavour(given: str) -> Flavour:
    try:
        return Flavour(given)
    except ValueError:
        known = ", ".join(flavour.value for flavour in Flavour)
        raise InvalidRequest(f"llm_backend: {given!r} is unknown; use one of {known}") from None


def _switch(parameters: Mapping[str, str], name: str) -> bool:
    given = parameters.get(name, "")
    if given.lower() not in _SWITCHES:
        raise InvalidRequest(f"{name}: {given!r} cannot be; use true or false")
    return _SWITCHES[given.lower()]
