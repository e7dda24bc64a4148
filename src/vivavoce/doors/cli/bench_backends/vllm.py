"""vLLM's offline `LLM`, which batches by itself. Its calls were read in 0.32 and 0.33, not run on a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from vivavoce.bench.offline import Prompt, Sampling
from vivavoce.doors.cli.bench_backends.choosing import Backend, Load, check_installed
from vivavoce.doors.cli.bench_backends.merged import MergedModel
from vivavoce.errors import MissingDependency

OLDEST, NEWEST = (0, 30), (0, 34)
"""The newest is excluded."""
_MEMORY_SHARE = 0.5
"""Of the device's memory: the flow and the vocoder want the rest."""


class VllmModel:
    """The merged model in vLLM, with a seed for each row."""

    def __init__(self, merged: MergedModel, dtype: torch.dtype, load: Load, sampling: Sampling = Sampling()) -> None:
        check_installed(Backend.VLLM)
        # The newer runner takes 1024 biased ids of a request at most, speech has over six thousand.
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        self._vllm = import_module("vllm")
        _check_version(str(self._vllm.__version__))
        self._merged, self._drawing = merged, sampling
        self._bias = {one: float(merged.bias[one]) for one in merged.allowed}
        self._llm = self._vllm.LLM(
            model=merged.name_or_path,
            skip_tokenizer_init=True,
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=load.positions,
            max_num_seqs=load.batch_size,
            gpu_memory_utilization=_MEMORY_SHARE,
            seed=0,
        )
        self.sampling = sampling.describe()

    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """See `LanguageModel`."""
        given = self._llm.generate(
            [{"prompt_token_ids": list(prompt.ids)} for prompt in prompts],
            [self._parameters(prompt) for prompt in prompts],
            use_tqdm=False,
        )
        return [self._merged.speech(one.outputs[0].token_ids) for one in given]

    def close(self) -> None:
        """See `LanguageModel`."""
        del self._llm

    def _parameters(self, prompt: Prompt) -> Any:
        return self._vllm.SamplingParams(
            top_p=self._drawing.top_p,
            top_k=self._drawing.top_k,
            temperature=self._drawing.temperature,
            repetition_penalty=self._drawing.repetition_penalty,
            seed=prompt.seed,
            min_tokens=prompt.least,
            max_tokens=prompt.most,
            stop_token_ids=list(self._merged.vocabulary.eos_ids),
            logit_bias=self._bias,
            allowed_token_ids=list(self._merged.allowed),
            detokenize=False,
        )


def _check_version(version: str) -> None:
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return  # built from source: its owner knows
    if not OLDEST <= (major, minor) < NEWEST:
        raise MissingDependency(
            f"backend: vllm {version} was never tried; pip install 'vllm>={OLDEST[0]}.{OLDEST[1]},"
            f"<{NEWEST[0]}.{NEWEST[1]}'"
        )
