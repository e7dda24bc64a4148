"""TensorRT-LLM's LLM API, on the merged folder or on a built engine. Its calls were read, not run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from vivavoce.bench.offline import Prompt, Sampling
from vivavoce.doors.cli.bench_backends.choosing import Backend, Load, check_installed
from vivavoce.doors.cli.bench_backends.merged import MergedModel

_MEMORY_SHARE = 0.5
"""Of the memory that is free: the flow and the vocoder want the rest."""


class TensorRTModel:
    """The merged model in TensorRT-LLM, with a seed for each row.

    engine_dir: an engine that trtllm-build made, for releases that still run such; None: the folder itself.
    """

    def __init__(
        self,
        merged: MergedModel,
        dtype: torch.dtype,
        load: Load,
        engine_dir: Path | None,
        sampling: Sampling = Sampling(),
    ) -> None:
        check_installed(Backend.TRTLLM)
        self._package = import_module("tensorrt_llm")
        cache = import_module("tensorrt_llm.llmapi").KvCacheConfig(free_gpu_memory_fraction=_MEMORY_SHARE)
        self._merged, self._drawing, self._bias = merged, sampling, merged.bias
        settings: dict[str, Any] = {"skip_tokenizer_init": True, "kv_cache_config": cache}
        if engine_dir is None:
            limits = {"max_batch_size": load.batch_size, "max_seq_len": load.positions}
            name = str(dtype).removeprefix("torch.")
            self._llm = self._package.LLM(model=merged.name_or_path, dtype=name, **limits, **settings)
        else:  # an engine has its dtype and its limits from when it was built
            self._llm = _engine_class(self._package)(model=str(engine_dir), **settings)
        self.sampling = sampling.describe()

    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """See `LanguageModel`."""
        given = self._llm.generate(
            [list(prompt.ids) for prompt in prompts],
            [self._parameters(prompt) for prompt in prompts],
            use_tqdm=False,
        )
        return [self._merged.speech(one.outputs[0].token_ids) for one in given]

    def close(self) -> None:
        """See `LanguageModel`."""
        self._llm.shutdown()

    def _parameters(self, prompt: Prompt) -> Any:
        ends = self._merged.vocabulary.eos_ids
        return self._package.SamplingParams(
            top_p=self._drawing.top_p,
            top_k=self._drawing.top_k,
            temperature=self._drawing.temperature,
            repetition_penalty=self._drawing.repetition_penalty,
            seed=prompt.seed,
            min_tokens=prompt.least,
            max_tokens=prompt.most,
            end_id=ends[0],
            pad_id=ends[0],
            stop_token_ids=list(ends),
            embedding_bias=self._bias,
            detokenize=False,
        )


def _engine_class(package: Any) -> Any:
    """The class that runs engines: since 1.0 it is no longer the package's first one."""
    try:
        return import_module("tensorrt_llm._tensorrt_engine").LLM
    except ImportError:
        return package.LLM
