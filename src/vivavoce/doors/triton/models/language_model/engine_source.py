"""The runtime `vivavoce`: this package's own language model, on any machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.doors.triton.models.language_model.prompt import read_prompt
from vivavoce.doors.triton.models.language_model.source import Sampling
from vivavoce.doors.triton.models.place import model_device, model_folder
from vivavoce.engine.token_engine import TokenEngine, TokenSettings
from vivavoce.engine.token_handle import TokenHandle
from vivavoce.engine.token_request import TokenRequest, speech_prompt
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import LanguageConfig, LanguageModel, build_language_model, prepare_device
from vivavoce.service.placement import choose_dtype
from vivavoce.service.text.tokenizer import TextTokenizer

_FORBIDDEN = -1e4
"""Logits so low are never drawn; some write −∞ so."""


class EngineTokens:
    """Tokens of one request (a `TokenStream`)."""

    def __init__(self, handle: TokenHandle, first: int) -> None:
        self._handle, self._first = handle, first

    async def __aiter__(self) -> AsyncGenerator[list[int], None]:
        """Merged ids, as they come."""
        async with aclosing(self._handle.__aiter__()) as pieces:
            async for tokens in pieces:
                yield [self._first + token for token in tokens]

    def cancel(self) -> None:
        """Free its slot."""
        self._handle.cancel()


class EngineSource:
    """A `TokenSource` over the token engine."""

    def __init__(self, engine: TokenEngine, vocabulary: MergedVocabulary) -> None:
        self.engine, self.vocabulary = engine, vocabulary
        bias = engine.model.lm.speech_head.bias
        assert bias is not None, "the speech head has a bias"
        self._bias: NDArray[np.float32] = bias.detach().float().cpu().numpy()

    def start(self, prompt: tuple[int, ...], sampling: Sampling) -> EngineTokens:
        """Begin; see `TokenSource`.

        Raises:
            InvalidRequest: it does not fit a slot, or brings a bias that is not the model's own.
            Overloaded: too many requests wait.
        """
        self._check_bias(sampling.embedding_bias)
        lm, parts = self.engine.model.config.lm, read_prompt(self.vocabulary, prompt)
        rows = speech_prompt(lm.vocabulary, parts.text, parts.speech)
        room = self.engine.capacity - len(rows) - 1
        if sampling.max_tokens > room:
            way_out = f"ask for {room} or fewer" if room > 0 else "use a shorter text or reference"
            raise InvalidRequest(
                f"request_output_len: {sampling.max_tokens} beside {len(rows)} ids of prompt, there is room for "
                f"{max(0, room)}; {way_out}"
            )
        request = TokenRequest(
            rows,
            sampling.max_tokens,
            min(sampling.min_tokens, sampling.max_tokens),
            None if sampling.may_end else (),
            top_p=sampling.top_p,
            top_k=lm.vocabulary.num_logits if sampling.top_k == 0 else sampling.top_k,
            seed=sampling.seed,
        )
        return EngineTokens(self.engine.submit(request), self.vocabulary.speech(0))

    def close(self) -> None:
        """End what runs."""
        self.engine.close(drain=False)

    def _check_bias(self, bias: NDArray[np.float32] | None) -> None:
        """What an engine without a biased head must be given with every request does no harm here."""
        if bias is None or not bias.any():
            return
        first, end = self.vocabulary.speech(0), self.vocabulary.sos
        others = np.concatenate((bias[:first], bias[end:]))
        own = len(bias) >= self.vocabulary.size and np.allclose(bias[first:end], self._bias, rtol=1e-2, atol=1e-3)
        if not (own and (others <= _FORBIDDEN).all()):
            raise InvalidRequest(
                "embedding_bias: is not that of this model's head, which is applied already; leave it out, or serve "
                "the language model with llm_backend llmapi"
            )


def load_engine_source(parameters: Mapping[str, str], streams: int | None = None) -> EngineSource:
    """The language model of `model_dir`, or of the merged Hugging Face folder that `gpt_model_path` (the template's
    engine_dir) names: where it holds weights of one, that one is meant.

    Further parameters: device; kv_cache_free_gpu_mem_fraction, what slots may take of a GPU's free memory.

    streams: get ready for so many at once before the first comes; None: for any number.

    Raises:
        VivavoceError: folder or device cannot be used.
    """
    device = model_device(parameters)
    settings = TokenSettings(memory_share=_share(parameters.get("kv_cache_free_gpu_mem_fraction", "")))
    merged = _merged_folder(parameters.get("gpt_model_path", ""))
    model, vocabulary = _official(model_folder(parameters), device) if merged is None else _merged(merged, device)
    engine = TokenEngine(model, settings)
    engine.warm_up(streams)
    return EngineSource(engine, vocabulary)


def _official(folder: Path, device: torch.device) -> tuple[LanguageModel, MergedVocabulary]:
    model = build_language_model(folder, device, choose_dtype("auto", device))
    text_size = len(TextTokenizer.from_folder(folder / BACKBONE))
    return model, MergedVocabulary(text_size, model.config.lm.vocabulary.num_speech_tokens)


def _merged(folder: Path, device: torch.device) -> tuple[LanguageModel, MergedVocabulary]:
    from vivavoce.export.hf.folder_settings import read_vocabulary
    from vivavoce.export.hf.reread import read_merged, speech_lm

    prepare_device(device)
    dtype = choose_dtype("auto", device)
    config, state = read_merged(folder)
    lm = speech_lm(config, state, dtype).to(device)
    return LanguageModel(LanguageConfig(config), lm, device, dtype), read_vocabulary(folder)


def _merged_folder(given: str) -> Path | None:
    folder = Path(given).expanduser()
    return folder if given and any(folder.glob("model*.safetensors")) else None


def _share(given: str) -> float:
    if not given:
        return TokenSettings().memory_share
    try:
        return float(given)
    except ValueError:
        raise InvalidRequest(
            f"kv_cache_free_gpu_mem_fraction: {given!r} is no number; give one above 0, 1 at most"
        ) from None
