"""Sizes to train: those of the mini model, or those of a checkpoint that is to be fine-tuned."""

from __future__ import annotations

from pathlib import Path

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.checkpoint.folder import read_config
from vivavoce.checkpoint.weights import find_part, read_tensors

MINI = Path(__file__).parent / "mini"
"""Everything of the mini model's folder that is not learned."""
MINI_UP_BLOCKS = 2
"""Conformer blocks after the upsampling; in a checkpoint the flow's parameter names tell."""


def mini_config() -> ModelConfig:
    """Sizes of the mini model."""
    return read_config(MINI, [f"encoder.up_encoders.{block}.norm_ff.weight" for block in range(MINI_UP_BLOCKS)])


def checkpoint_config(folder: Path) -> ModelConfig:
    """Sizes of a checkpoint in the official layout; errors as in `read_config`."""
    return read_config(folder, read_tensors(find_part(folder, "flow")))
