"""First weights of the vocoder, and its weights in the official file's form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from training.weights import load_part
from vivavoce.checkpoint.names import VOCODER_NAMES
from vivavoce.checkpoint.weights import fold_weight_norm, load_into, read_tensors
from vivavoce.models.vocoder.hift import HiFT

FIRST_MAGNITUDE = -3.0
"""Natural logarithm of the first magnitudes: well inside the audio limit, past which there is no slope."""
FIRST_PITCH_HZ = 100.0
_WITHOUT_WEIGHT_NORM = ("source.", "source_downs.", "f0.out.")
"""What the official vocoder keeps as plain weights."""
_NORM = ".parametrizations.weight.original"


def initialise(model: HiFT) -> None:
    """Start from PyTorch's usual weights, a soft output, and a pitch predictor whose outputs count in hundreds."""
    bins = model.config.n_fft // 2 + 1
    with torch.no_grad():
        model.conv_post.get_parameter("bias")[:bins] = FIRST_MAGNITUDE
        model.f0.out.weight.mul_(FIRST_PITCH_HZ)
        model.f0.out.bias.fill_(FIRST_PITCH_HZ)


def official_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official names and form of our parameters, float16.

    A convolution's weight becomes weight norm's pair: original1 is the weight itself, original0 its norm over all
    dimensions but the first (arXiv:1602.07868). The norms stay float32: rounded, they would scale whole rows.
    """
    official: dict[str, Tensor] = {}
    for own, tensor in state.items():
        name, half = VOCODER_NAMES.to_official(own), tensor.detach().to("cpu", torch.float16)
        if tensor.dim() == 3 and not own.startswith(_WITHOUT_WEIGHT_NORM):
            stem = name.removesuffix(".weight") + _NORM
            official[stem + "0"] = torch.linalg.vector_norm(half.float(), dim=(1, 2), keepdim=True)
            official[stem + "1"] = half
        else:
            official[name] = half
    return official


def save_official(state: Mapping[str, Tensor], path: Path) -> None:
    """Write `hift.pt`: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    torch.save(official_state(state), temporary)
    temporary.replace(path)


def load_official(model: nn.Module, path: Path) -> None:
    """Read a `hift.pt`, or the vocoder of a checkpoint folder, into `model`, in float32.

    Raises:
        CheckpointError: unreadable, or of another size.
    """
    if path.is_dir():
        load_part(model, path, "hift", VOCODER_NAMES)
    else:
        load_into(model, fold_weight_norm(read_tensors(path)), VOCODER_NAMES, path.name, torch.float32)
