"""LoRA adapters for tests: random ones, and models with such a folder merged into their weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from benchmarks.random_adapter import make_random_adapter, merge_adapter
from vivavoce.checkpoint.config import qwen2_of
from vivavoce.models.lm.qwen2 import SpeechLM

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def write_adapter(folder: Path, lm: SpeechLM, **options: Any) -> Path:
    return make_random_adapter(folder, qwen2_of(lm.config), **options)


def merged(lm: SpeechLM, folder: Path) -> SpeechLM:
    """A copy of the model with W + scale · B·A in place of W, made without the reader."""
    changed = copy.deepcopy(lm)
    merge_adapter(changed, folder)
    return changed
