"""transformers: `AutoModelForCausalLM.generate` over batches that are padded on the left."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from vivavoce.bench.offline import Prompt, Sampling
from vivavoce.doors.cli.bench_backends.choosing import Backend, check_installed
from vivavoce.doors.cli.bench_backends.merged import MergedModel


class HuggingFaceModel:
    """The merged model in transformers, in the networks' device and dtype.

    It has one generator for a batch: the first prompt's seed is that of all, and the batch goes on until its last row
    has ended.
    """

    def __init__(
        self, merged: MergedModel, device: torch.device, dtype: torch.dtype, sampling: Sampling = Sampling()
    ) -> None:
        check_installed(Backend.HF)
        self._transformers = import_module("transformers")
        self._transformers.utils.logging.disable_progress_bar()
        model = self._transformers.AutoModelForCausalLM.from_pretrained(merged.name_or_path, dtype=dtype)
        self._model = model.to(device).eval()
        self._merged, self._device, self._drawing = merged, device, sampling
        self._bias = merged.bias_for(int(model.config.vocab_size)).to(device)
        self.sampling = sampling.describe()

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """See `LanguageModel`."""
        ids, mask = self._padded([prompt.ids for prompt in prompts])
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(prompts[0].seed)
            given = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                top_p=self._drawing.top_p,
                top_k=self._drawing.top_k,
                temperature=self._drawing.temperature,
                repetition_penalty=1.0,
                min_new_tokens=min(prompt.least for prompt in prompts),
                max_new_tokens=max(prompt.most for prompt in prompts),
                eos_token_id=list(self._merged.vocabulary.eos_ids),
                pad_token_id=self._merged.vocabulary.eos_ids[0],
                logits_processor=self._processors(),
            )
        rows = given[:, ids.shape[1] :].tolist()
        return [self._merged.speech(row)[: prompt.most] for row, prompt in zip(rows, prompts, strict=True)]

    def close(self) -> None:
        """See `LanguageModel`."""
        del self._model

    def _padded(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        """Ids and where they are no padding, [rows, longest] int64 each."""
        longest = max(map(len, prompts))
        # An id that is never drawn: the penalty counts whatever stands in the prompt, be it masked.
        pad = self._merged.vocabulary.sos
        ids = torch.tensor([(pad,) * (longest - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        return ids.to(self._device), mask.to(self._device)

    def _processors(self) -> Any:
        """The bias before the penalty: only then does the penalty see the model's own logits."""
        bias, package = self._bias, self._transformers

        class SpeechBias(package.LogitsProcessor):  # type: ignore[name-defined,misc]
            """Adds the speech head's bias, which Qwen2 has no place for; no text id is ever drawn."""

            def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
                """input_ids: [rows, time]; scores: [rows, ids]  →  the same shape."""
                return scores + bias

        penalty = package.RepetitionPenaltyLogitsProcessor(self._drawing.repetition_penalty)
        return package.LogitsProcessorList([SpeechBias(), penalty])
