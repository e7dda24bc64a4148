"""Whether a folder still holds what a conversion made there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce.export.hf.head_bias import read_bias
from vivavoce.export.trtllm.rank_file import fits
from vivavoce.export.trtllm.rank_tensors import Plan


def holds(folder: Path, plan: Plan, texts: Mapping[str, str], bias: Tensor | None) -> bool:
    """Whether all files are there and undamaged, as far as that shows without reading a rank's tensors.

    Args:
        folder: where to look.
        plan: says how each rank's file begins and how long it is.
        texts: files by name and what is in them.
        bias: what the head's bias must be; None if there must be none.
    """
    try:
        found = read_bias(folder)
        same_texts = all((folder / name).read_text(encoding="utf-8") == text for name, text in texts.items())
        same_ranks = all(fits(rank_path(folder, rank), plan.specs(rank)) for rank in range(plan.options.world))
    except (CheckpointError, OSError, ValueError):
        return False
    return same_texts and same_ranks and _same(found, bias)


def rank_path(folder: Path, rank: int) -> Path:
    """A rank's file."""
    return folder / f"rank{rank}.safetensors"


def _same(found: Tensor | None, wanted: Tensor | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return found.dtype == wanted.dtype and torch.equal(found, wanted)
