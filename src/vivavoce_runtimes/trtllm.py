"""TensorRT-LLM as the runtime of the language model, through its LLM API.

Written for the documented interface of releases 1.0 to 1.2, whose default is the PyTorch backend. It was tested
with a stand-in, and never with TensorRT-LLM itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.models.build import LanguageModel, Models
from vivavoce_runtimes.sampling_rng import Draws, SpeechSampler
from vivavoce_runtimes.streamed_lm import Ask, import_runtime

INSTALL = (
    "use NVIDIA's TensorRT-LLM container, or pip install --extra-index-url https://pypi.nvidia.com "
    "'tensorrt_llm>=1.0,<2', or let vivavoce's own engine decode"
)


def import_trtllm() -> Any:
    api = import_runtime("tensorrt_llm", (1, 0), (2, 0), INSTALL)
    import_module("tensorrt_llm.llmapi")
    return api


def open_llm(api: Any, model: Path, slots: int, cache: Mapping[str, Any], **given: Any) -> Any:
    """Open an `LLM` without tokenizer. model: merged folder; slots: maximum requests; cache: for `KvCacheConfig`."""
    settings = api.llmapi.KvCacheConfig(**{name: one for name, one in cache.items() if one is not None})
    return api.LLM(model=str(model), skip_tokenizer_init=True, max_batch_size=slots, kv_cache_config=settings, **given)


class LLMTokens:
    """Iterates over the new ids of one request. result: from `generate_async`; ends: ids that end speech.

    end: the id that ended the request, set when all ids have arrived; None if the limit ended it. Some releases of
    TensorRT-LLM put this id among the others; this class leaves it out.
    """

    def __init__(self, result: Any, ends: Sequence[int]) -> None:
        self._result, self._ends, self._over = result, ends, False
        self.end: int | None = None

    async def __aiter__(self) -> AsyncGenerator[list[int], None]:
        taken = 0
        try:
            async for output in self._result:
                one = output.outputs[0]  # it holds all ids so far, not only the new ids
                ids = [int(each) for each in one.token_ids]
                place = next((place for place, each in enumerate(ids) if each in self._ends), len(ids))
                if place < len(ids):
                    self.end = ids[place]
                elif getattr(one, "finish_reason", None) == "stop":
                    self.end = self._ends[0] if one.stop_reason is None else int(one.stop_reason)
                if place > taken:
                    yield ids[taken:place]
                    taken = place
            self._over = True
        finally:
            self.cancel()

    def cancel(self) -> None:
        if not self._over:
            self._over = True
            self._result.abort()


class LogitsOfOne:
    """A `logits_processor` of one request: draws an id and masks all other ids. Each runtime process has a copy.

    It lists the ids itself, because the runtime's list may lack the newest id when the next logits are ready.
    """

    def __init__(self, folder: Path, draws: Draws) -> None:
        self._folder, self._draws, self._said = folder, draws, list[int]()

    def __call__(
        self, req_id: int, logits: torch.Tensor, token_ids: object, stream_ptr: int | None, client_id: int | None
    ) -> None:
        """logits: [1, 1, ids of the runtime], changed in place on the current stream."""
        sampler = _sampler(self._folder, logits.device)
        chosen = sampler.leave_one(logits.view(1, -1), [0], [self._draws], [self._said])
        self._said.append(sampler.first + int(chosen))


@lru_cache(maxsize=4)
def _sampler(folder: Path, device: torch.device) -> SpeechSampler:
    return SpeechSampler(folder, device)


class TrtllmRuntime:
    """The `TokenRuntime` of TensorRT-LLM. MissingDependency: as `import_trtllm`."""

    name, healthy = "trtllm", True

    def __init__(
        self, folder: Path, models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan
    ) -> None:
        self._api, self._folder, share = import_trtllm(), folder, None
        if memory.slots_bytes:  # as a share of the memory that the weights leave free
            share = min(0.9, memory.slots_bytes / torch.cuda.mem_get_info(models.device)[0])
        self._llm = open_llm(
            self._api,
            folder,
            memory.slots,
            {"free_gpu_memory_fraction": share},
            dtype=str(models.dtype).removeprefix("torch."),
            max_seq_len=memory.capacity,
            tensor_parallel_size=settings.tp,
            pipeline_parallel_size=settings.pp,
        )

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[int], None]:
        first, *others = ask.ends
        params = self._api.SamplingParams(
            max_tokens=ask.most,
            top_k=1,  # the only id that is not masked
            end_id=first,
            pad_id=first,
            stop_token_ids=others,
            detokenize=False,
            logits_processor=LogitsOfOne(self._folder, ask.draws),
        )
        stream = LLMTokens(self._llm.generate_async(list(ask.prompt), sampling_params=params, streaming=True), ask.ends)
        async with aclosing(aiter(stream)) as pieces:
            async for piece in pieces:
                yield piece
        if stream.end is not None:
            yield [stream.end]

    def close(self) -> None:
        self._llm.shutdown()
