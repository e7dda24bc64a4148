"""The runtime `llmapi`: TensorRT-LLM's LLM API over the merged Hugging Face folder.

Written against releases 1.0 to 1.2, whose default is the PyTorch backend; tested against a stand-in only.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import SamplingDefaults
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.language_model.source import Sampling
from vivavoce.errors import InvalidRequest, MissingDependency, ModelNotFound

OLDEST, BEFORE = (1, 0), (2, 0)
"""Versions that the calls below are right for."""
_INSTALL = (
    "use NVIDIA's TensorRT-LLM container, or pip install --extra-index-url https://pypi.nvidia.com "
    "'tensorrt_llm>=1.0,<2', or fill the template with llm_backend vivavoce"
)


@dataclass(frozen=True, eq=False)
class MergedModel:
    """vocabulary; sampling: for requests that leave it open; bias: [rows of the head] float32, added to the logits of
    requests that bring none, since plain Qwen2 has no place for the speech head's, nor a way to forbid text ids.
    """

    vocabulary: MergedVocabulary
    sampling: SamplingDefaults
    bias: NDArray[np.float32]


class LLMTokens:
    """Tokens of one request (a `TokenStream`). result: what `generate_async` gives; ends: ids that end speech."""

    def __init__(self, result: Any, ends: frozenset[int]) -> None:
        self._result, self._ends = result, ends
        self._over = False

    async def __aiter__(self) -> AsyncGenerator[list[int], None]:
        """Merged ids, as they come."""
        taken = 0
        try:
            async for output in self._result:
                # An output has all ids so far; whether the one that ends speech is among them is the release's choice.
                ids = [int(one) for one in output.outputs[0].token_ids]
                end = next((place for place, one in enumerate(ids) if one in self._ends), len(ids))
                if end > taken:
                    yield ids[taken:end]
                    taken = end
            self._over = True
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Free what it holds."""
        if not self._over:
            self._over = True
            self._result.abort()


class LLMSource:
    """A `TokenSource` over `tensorrt_llm.LLM`.

    api: the module `tensorrt_llm`; llm: an `LLM`; model: what the folder says of it.
    """

    def __init__(self, api: Any, llm: Any, model: MergedModel) -> None:
        self._api, self._llm, self._model = api, llm, model
        self.vocabulary = model.vocabulary
        self._bias = torch.from_numpy(model.bias)

    def start(self, prompt: tuple[int, ...], sampling: Sampling) -> LLMTokens:
        """Begin; see `TokenSource`.

        Raises:
            InvalidRequest: the bias is not of the head's size.
        """
        result = self._llm.generate_async(list(prompt), sampling_params=self._params(sampling), streaming=True)
        return LLMTokens(result, frozenset(self.vocabulary.eos_ids))

    def close(self) -> None:
        """End what runs, and the workers."""
        self._llm.shutdown()

    def _params(self, sampling: Sampling) -> Any:
        first, *others = self.vocabulary.eos_ids
        defaults = self._model.sampling
        optional = {
            "temperature": sampling.temperature,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "stop_token_ids": others if sampling.may_end else None,
        }
        return self._api.SamplingParams(
            max_tokens=sampling.max_tokens,
            min_tokens=min(sampling.min_tokens, sampling.max_tokens),
            top_p=defaults.top_p if sampling.top_p is None else sampling.top_p,
            top_k=defaults.top_k if sampling.top_k is None else sampling.top_k,
            end_id=first if sampling.may_end else -1,
            pad_id=first,
            # The bits of our signed number.
            seed=sampling.seed % 2**64,
            embedding_bias=self._bias_of(sampling),
            detokenize=False,
            **{name: value for name, value in optional.items() if value is not None},
        )

    def _bias_of(self, sampling: Sampling) -> torch.Tensor:
        bias = self._bias if sampling.embedding_bias is None else torch.from_numpy(sampling.embedding_bias)
        if len(bias) != len(self._bias):
            raise InvalidRequest(
                f"embedding_bias: {len(bias)} numbers, the head has {len(self._bias)} rows; send as many, or leave it "
                "out for the model's own"
            )
        if not sampling.may_end:
            bias = bias.clone()
            bias[list(self.vocabulary.eos_ids)] = -torch.inf
        return bias


def load_llm_source(parameters: Mapping[str, str], most: int) -> LLMSource:
    """The merged Hugging Face folder that `gpt_model_path` (the template's engine_dir) names.

    Further parameters, as TensorRT-LLM's own backend has them: kv_cache_free_gpu_mem_fraction,
    max_tokens_in_paged_kv_cache, enable_kv_cache_reuse.

    most: requests that are decoded at once.

    Raises:
        MissingDependency: TensorRT-LLM cannot be imported, or is of another version.
        VivavoceError: the folder cannot be used.
    """
    given = parameters.get("gpt_model_path", "")
    folder = Path(given).expanduser()
    if not given or not folder.is_dir():
        raise ModelNotFound(f"gpt_model_path: {given!r} is no folder; fill engine_dir with the merged model's")
    model = read_merged_model(folder)
    api = _imported()
    llm = api.LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        max_batch_size=most,
        kv_cache_config=api.llmapi.KvCacheConfig(**_cache_settings(parameters)),
    )
    return LLMSource(api, llm, model)


def read_merged_model(folder: Path) -> MergedModel:
    """What a merged folder says of its model; the bias is −∞ at every id that is not the speech head's.

    Raises:
        CheckpointError: files missing, corrupt or not fitting one another.
    """
    from vivavoce.export.hf.folder_settings import read_vocabulary
    from vivavoce.export.hf.reread import read_merged

    vocabulary = read_vocabulary(folder)
    config, state = read_merged(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    bias = np.full(settings.get("vocab_size", vocabulary.padded_size), -np.inf, np.float32)
    bias[vocabulary.speech(0) : vocabulary.sos] = state["speech_head.bias"].float().numpy()
    return MergedModel(vocabulary, config.sampling, bias)


def _imported() -> Any:
    try:
        api = importlib.import_module("tensorrt_llm")
        importlib.import_module("tensorrt_llm.llmapi")
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise MissingDependency(f"tensorrt_llm: cannot be imported ({reason}); {_INSTALL}") from error
    version = str(getattr(api, "__version__", "of an unknown version"))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) < BEFORE:
        raise MissingDependency(f"tensorrt_llm: {version} is not supported; {_INSTALL}")
    return api


def _cache_settings(parameters: Mapping[str, str]) -> dict[str, Any]:
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "free_gpu_memory_fraction": ("kv_cache_free_gpu_mem_fraction", float),
        "max_tokens": ("max_tokens_in_paged_kv_cache", int),
        "enable_block_reuse": ("enable_kv_cache_reuse", _switch),
    }
    settings: dict[str, Any] = {}
    for theirs, (ours, read) in readers.items():
        if given := parameters.get(ours, ""):
            try:
                settings[theirs] = read(given)
            except ValueError:
                raise InvalidRequest(f"{ours}: {given!r} cannot be read; give a number, or true or false") from None
    return settings


def _switch(given: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if given.lower() not in known:
        raise ValueError(given)
    return known[given.lower()]
