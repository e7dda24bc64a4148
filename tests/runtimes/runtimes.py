"""Runtimes for tests: the network of our own stage behind merged ids, as a plain runtime and as a package."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from vivavoce.models.build import Models
from vivavoce_runtimes.merged_vocabulary import EMBEDDING_BIAS, MergedVocabulary
from vivavoce_runtimes.sampling_rng import SpeechSampler
from vivavoce_runtimes.streamed_lm import Ask, StreamedLM

CPU = torch.device("cpu")


class MergedNetwork:
    """The next logits of merged ids, as a runtime computes them: without the head's bias, and 0 for ids of no row.

    folder: of a merged model, in which the bias is written; text_size: None: as many as the text table has rows.
    """

    def __init__(self, models: Models, folder: Path, text_size: int | None = None) -> None:
        self.lm, config, self.folder = models.lm, models.config, folder
        self.vocabulary = MergedVocabulary(
            text_size or config.lm.text_vocab_size, config.lm.vocabulary.num_speech_tokens, config.generation
        )
        if text_size is not None:
            return
        bias = np.full(self.vocabulary.padded_size, -np.inf, np.float32)
        head = self.lm.speech_head.bias
        bias[self.vocabulary.head] = 0.0 if head is None else head.detach().numpy()
        np.save(folder / EMBEDDING_BIAS, bias)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """[1, padded ids] float32 after these ids."""
        rows, vocabulary, lm = [], self.vocabulary, self.lm
        for one in ids:
            if one < vocabulary.text_size:
                table, row = lm.text_embedding, one
            elif one in (vocabulary.sos, vocabulary.task):
                own = vocabulary.own
                table, row = lm.control_rows, own.sos if one == vocabulary.sos else own.task
            else:
                table, row = lm.speech_embedding, one - vocabulary.text_size
            rows.append(table(torch.tensor([row])))
        hidden = lm(torch.cat(rows)[None])[:, -1]
        found = torch.zeros(1, vocabulary.padded_size)
        found[:, vocabulary.head] = linear(hidden, lm.speech_head.weight)
        return found


@dataclass
class PlainRuntime:
    """A `TokenRuntime`; each answer gives one id, or two at once.

    failing: raises this for a prompt of which `when` is true; at once, or after some ids.
    """

    network: MergedNetwork
    name: str = "plain"
    healthy: bool = True
    pair: bool = False
    failing: Callable[[Ask, int], Exception | None] = lambda ask, said: None
    aborted: int = 0
    finished: int = 0
    closed: bool = False
    asked: list[Ask] = field(default_factory=list)
    hold: asyncio.Event | None = None

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[int], None]:
        self.asked.append(ask)
        sampler, said, waiting = SpeechSampler(self.network.folder, CPU), [], []
        over = False
        try:
            while not over:
                await asyncio.sleep(0)
                if self.hold is not None:
                    await self.hold.wait()
                error = self.failing(ask, len(said))
                if error is not None:
                    over = True
                    raise error
                logits = self.network.logits([*ask.prompt, *said])
                sampler.leave_one(logits, [0], [ask.draws], [said])
                said.append(int(logits.argmax()))
                waiting.append(said[-1])
                over = said[-1] in ask.ends or len(said) == ask.most
                if over or len(waiting) == 1 + self.pair:
                    given, waiting = waiting, []
                    yield given
            self.finished += 1
        finally:
            self.aborted += not over

    def close(self) -> None:
        self.closed = True


@contextmanager
def streamed(runtime: PlainRuntime, models: Models, slots: int = 4, capacity: int = 600):
    stage = StreamedLM(
        lambda: runtime, runtime.network.vocabulary, models.config.lm.sampling, slots=slots, capacity=capacity
    )
    try:
        yield stage
    finally:
        stage.shutdown()


class Result:
    """What TensorRT-LLM's `generate_async` gives: https://nvidia.github.io/TensorRT-LLM, LLM API, release 1.2.

    With all ids so far; `with_end`: whether the one that ends it is among them.
    """

    def __init__(self, network: MergedNetwork, prompt: list[int], params: Any, with_end: bool) -> None:
        self.network, self.prompt, self.params, self.with_end = network, prompt, params, with_end
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    async def __aiter__(self):
        params, ids = self.params, []
        while len(ids) < params.max_tokens and not self.aborted:
            await asyncio.sleep(0)
            logits = self.network.logits([*self.prompt, *ids])
            # (req_id, logits [1, 1, ids], token_ids of each beam, stream_ptr, client_id); changes the logits in place
            params.logits_processor(7, logits.view(1, 1, -1), [[*self.prompt, *ids]], None, None)
            assert params.top_k == 1
            ids.append(int(logits.argmax()))
            ended = ids[-1] in (params.end_id, *params.stop_token_ids)
            reason = "stop" if ended else "length" if len(ids) == params.max_tokens else None
            stop = ids[-1] if ended and ids[-1] != params.end_id else None
            shown = ids[:-1] if ended and not self.with_end else ids
            output = SimpleNamespace(token_ids=shown, finish_reason=reason, stop_reason=stop)
            yield SimpleNamespace(outputs=[output])
            if ended:
                return


@dataclass
class TrtllmSamplingParams:
    """The fields of `tensorrt_llm.SamplingParams` (1.2) that are used."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    stop_token_ids: list[int] | None = None
    logits_processor: Any = None
    top_k: int | None = None
    detokenize: bool = True


def trtllm_package(network: MergedNetwork, with_end: bool = True) -> tuple[types.ModuleType, types.ModuleType]:
    """The packages `tensorrt_llm` and `tensorrt_llm.llmapi`; what `LLM` was given is `made` of the first one."""
    api, llmapi = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm.llmapi")

    class LLM:
        def __init__(self, model: str, **given: Any) -> None:
            api.made, self.down, self.results = {"model": model, **given}, False, []
            api.llm = self

        def generate_async(self, inputs: list[int], sampling_params: Any = None, *, streaming: bool = False) -> Result:
            asyncio.get_running_loop()
            assert streaming
            self.results.append(Result(network, inputs, sampling_params, with_end))
            return self.results[-1]

        def shutdown(self) -> None:
            self.down = True

    api.__version__, api.LLM, api.SamplingParams, api.llmapi = "1.2.1", LLM, TrtllmSamplingParams, llmapi
    llmapi.KvCacheConfig = dict
    return api, llmapi
