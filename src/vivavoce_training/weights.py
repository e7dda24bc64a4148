"""Sizes and weights of trained parts, from and to files in the official layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from vivavoce.checkpoint.config import Generation, ModelConfig
from vivavoce.checkpoint.folder import speech_tokenizer_of
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import (
    FLOW_NAMES,
    LM_NAMES,
    VOCODER_NAMES,
    find_part,
    fold_weight_norm,
    load_into,
    read_tensors,
)
from vivavoce.files import replacing
from vivavoce.models.vocoder.hift import HiFT

MINI = Path(__file__).parent / "mini"
"""Everything of the mini model's folder that is not learned."""
SPEECH_TOKENIZER = speech_tokenizer_of(Generation.V2)
MINI_UP_BLOCKS = 2
"""Conformer blocks after the upsampling; in a checkpoint the flow's parameter names tell."""
_NAMES = {"llm": LM_NAMES, "flow": FLOW_NAMES, "hift": VOCODER_NAMES}
_WITHOUT_WEIGHT_NORM = ("source.", "source_downs.", "f0.out.")
"""What the official vocoder keeps as plain weights."""
_NORM = ".parametrizations.weight.original"


def mini_config() -> ModelConfig:
    """Sizes of the mini model."""
    return read_config(MINI, [f"encoder.up_encoders.{block}.norm_ff.weight" for block in range(MINI_UP_BLOCKS)])


def checkpoint_config(folder: Path) -> ModelConfig:
    """Sizes of a checkpoint in the official layout; errors as in `read_config`."""
    return read_config(folder, read_tensors(find_part(folder, "flow")))


def load_part(module: nn.Module, place: Path, part: str) -> None:
    """Give a module the weights of a part (llm, flow, hift), in float32; place: its file, or a checkpoint's folder.

    CheckpointError: unreadable, or of another size.
    """
    path = find_part(place, part) if place.is_dir() else place
    state = read_tensors(path)
    load_into(module, fold_weight_norm(state) if part == "hift" else state, _NAMES[part], path.name, torch.float32)


def save_part(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write `llm.pt`, `flow.pt` or `hift.pt`: readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    official = official_state(path.stem, state)
    with replacing(path) as file:
        torch.save(official, file)


def official_state(part: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official names and form of our parameters, float16: at these sizes no weight overflows.

    A vocoder's convolution becomes weight norm's pair: original1 is the weight itself, original0 its norm over all
    dimensions but the first (arXiv:1602.07868). The norms stay float32: rounded, they would scale whole rows.
    """
    official: dict[str, Tensor] = {}
    for own, tensor in state.items():
        name, half = _NAMES[part].to_official(own), tensor.detach().to("cpu", torch.float16).contiguous()
        if part == "hift" and tensor.dim() == 3 and not own.startswith(_WITHOUT_WEIGHT_NORM):
            stem = name.removesuffix(".weight") + _NORM
            official[stem + "0"] = torch.linalg.vector_norm(half.float(), dim=(1, 2), keepdim=True)
            official[stem + "1"] = half
        else:
            official[name] = half
    return official


FIRST_MAGNITUDE = -3.0
"""Natural logarithm of the first magnitudes: well inside the audio limit, past which there is no slope."""
FIRST_PITCH_HZ = 100.0


def initialise(model: HiFT) -> None:
    """Start from PyTorch's usual weights, a soft output, and a pitch predictor whose outputs count in hundreds."""
    bins = model.config.n_fft // 2 + 1
    with torch.no_grad():
        model.conv_post.get_parameter("bias")[:bins] = FIRST_MAGNITUDE
        model.f0.out.weight.mul_(FIRST_PITCH_HZ)
        model.f0.out.bias.fill_(FIRST_PITCH_HZ)
