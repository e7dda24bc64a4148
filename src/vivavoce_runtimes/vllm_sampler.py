"""Runs our sampling in vLLM's processes, which import this module when they start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from vivavoce.child import end_with_parent
from vivavoce_runtimes.sampling_rng import Draws, SpeechSampler
from vivavoce_runtimes.vllm import OWNER

if os.environ.get(OWNER, str(os.getpid())) != str(os.getpid()):
    # This is a process of vLLM. It ends with the process that started it; else it would keep the GPU's memory.
    end_with_parent()


class RepetitionAware(LogitsProcessor):  # type: ignore[misc]
    """Masks all ids but one in the row of each request that has `draws` among its extra arguments."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._sampler = SpeechSampler(Path(vllm_config.model_config.model), device)
        self._rows: dict[int, tuple[Draws, list[int]]] = {}
        """Row → its request's sampling settings and state, and vLLM's list of the ids so far, which grows."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._rows, batch_update, _added)

    def apply(self, logits: Tensor) -> Tensor:
        """logits: [rows, ids], changed in place."""
        if self._rows:
            draws, said = zip(*self._rows.values(), strict=True)
            self._sampler.leave_one(logits, list(self._rows), draws, said)
        return logits


def _added(params: Any, prompt: object, said: list[int]) -> tuple[Draws, list[int]] | None:
    given = (params.extra_args or {}).get("draws")
    # Between processes, the tuples of `Draws` become lists, which work as well.
    return None if given is None else (Draws(**given), said)
