"""The bias of a merged model's head: Qwen2 has no tensor for it, so it may lie in either of two places, or in none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce.export.hf.config import REMEDY
from vivavoce.export.hf.write import EMBEDDING_BIAS


def read_bias(folder: Path, stored: Tensor | None = None) -> Tensor | None:
    """The head's bias, [ids] of a float dtype.

    Its own file has the first word: it is float32, and what runtimes are told to add to the logits.

    Args:
        folder: where `embedding_bias.npy` may lie.
        stored: what the weights have under the head's bias's name.

    Returns:
        None if neither is there.

    Raises:
        CheckpointError: it cannot be read, or is no list of floating point numbers.
    """
    path = folder / EMBEDDING_BIAS
    bias = stored
    if path.is_file():
        try:
            bias = torch.from_numpy(np.load(path, allow_pickle=False))
        except (OSError, ValueError, TypeError, EOFError):
            raise CheckpointError(f"{path.name}: cannot be read; {REMEDY}") from None
    if bias is not None and (bias.dim() != 1 or not bias.is_floating_point()):
        dtype = str(bias.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{folder.name}: the head's bias is {list(bias.shape)} {dtype} and no list of floating point numbers; "
            f"{REMEDY}"
        )
    return bias
