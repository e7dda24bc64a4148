"""Sizes and initial weights of the parts to train; reads and writes weights in the official layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vivavoce.checkpoint.config import Generation, ModelConfig, qwen2_of
from vivavoce.checkpoint.folder import BACKBONE, detect_generation, speech_tokenizer_of
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import find_part, load_into, read_tensors
from vivavoce.errors import CheckpointError, InvalidRequest, UnsupportedModel
from vivavoce.files import replacing
from vivavoce.frontend.modes import MODES
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.models.generations import NETWORKS, NetworkPart
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import HiFT


def trainable(folder: Path) -> Path:
    """Return the folder; UnsupportedModel: its model is a CosyVoice 1."""
    if (generation := detect_generation(folder)) is Generation.V1:
        raise UnsupportedModel(
            f"model: is of generation {generation.value}; `vivavoce train` is for v2 (CosyVoice2) and v3 (CosyVoice3)"
        )
    return folder


def sizes_of(init: Path | None, settings: Path | None) -> tuple[Path, ModelConfig]:
    """Return the folder of settings that a training uses, and the configuration that they give.

    init: folder of the model to start from; settings: folder for a new model, None: mini's. Errors as in `read_config`;
    InvalidRequest: both are given; UnsupportedModel: as in `trainable`.
    """
    if init is None:
        place = MINI if settings is None else trainable(settings)
        return place, new_config(place)
    if settings is not None:
        raise InvalidRequest(f"settings: {settings} is given beside --init, whose model has its own; leave one out")
    return init, checkpoint_config(init)


def text_ids(settings: Path, config: ModelConfig) -> tuple[Callable[[str], Sequence[int]], Sequence[int]]:
    """Return the tokenizer's function that encodes texts, and the ids of the model's system prompt, if it has one.

    CheckpointError: the language model has fewer ids than the tokenizer.
    """
    tokenizer, modes = TextTokenizer.from_folder(settings / BACKBONE), MODES[config.generation]
    if (size := qwen2_of(config.lm).text_vocab_size) < len(tokenizer):
        raise CheckpointError(
            f"{BACKBONE}/config.json: vocab_size {size} is below the tokenizer's {len(tokenizer)} ids; make it as large"
        )
    return tokenizer.encode, tokenizer.encode(modes.prompt()) if modes.system else ()


MINI = Path(__file__).parent / "mini"  # the files of the mini model's folder that are not trained
SPEECH_TOKENIZER = speech_tokenizer_of(Generation.V2)
"""File name of the trained speech tokenizer; CosyVoice3's has another name and the same interface."""
MINI_UP_BLOCKS = 2  # Conformer blocks after the upsampling; a checkpoint tells this number by parameter names.
_WITHOUT_WEIGHT_NORM = ("source.", "source_downs.", "f0.out.")  # Without weight norm in the official vocoder.
_NORM = ".parametrizations.weight.original"


def new_config(settings: Path = MINI) -> ModelConfig:
    """Read the sizes of a model without weights from its settings files; errors as in `read_config`."""
    return read_config(settings, [f"encoder.up_encoders.{block}.norm_ff.weight" for block in range(MINI_UP_BLOCKS)])


def checkpoint_config(folder: Path) -> ModelConfig:
    """Read the sizes of a checkpoint in the official layout; errors as in `read_config`."""
    return read_config(folder, read_tensors(find_part(folder, "flow")))


def load_part(module: nn.Module, place: Path, part: NetworkPart) -> None:
    """Load a part's weights into a module, in float32; place: the part's file, or a checkpoint's folder.

    CheckpointError: the file cannot be read, or its weights have other sizes.
    """
    path = find_part(place, part.part) if place.is_dir() else place
    load_into(module, part.state(read_tensors(path)), part.names, path.name, torch.float32)


def average_files(files: Sequence[Path], out: Path, config: ModelConfig) -> Path:
    """Write the mean of several weight files of one part to the folder `out`, and return the new file's path.

    InvalidRequest: the files do not all have one part's name; CheckpointError: a file does not fit the settings.
    """
    parts = {f"{part.part}.pt": part for part in NETWORKS[config.generation].values()}
    names = sorted({path.name for path in files})
    if len(names) != 1 or names[0] not in parts or len(files) < 2:
        raise InvalidRequest(f"files: {', '.join(names)}; give two or more files named as one of {', '.join(parts)}")
    part, states = parts[names[0]], list[dict[str, Tensor]]()
    for file in files:
        module = part.build(config)
        load_part(module, file, part)
        states.append(module.state_dict())
    return save_part(out, {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}, part)


def save_part(folder: Path, state: Mapping[str, Tensor], part: NetworkPart) -> Path:
    """Write `llm.pt`, `flow.pt` or `hift.pt`, and return its path. Readers see the old file or the complete new one."""
    folder.mkdir(parents=True, exist_ok=True)
    path, official = folder / f"{part.part}.pt", official_state(state, part)
    with replacing(path) as file:
        torch.save(official, file)
    return path


def official_state(state: Mapping[str, Tensor], part: NetworkPart) -> dict[str, Tensor]:
    """Convert our parameters to official names and the official form, in float16, which no trained weight exceeds.

    A vocoder's convolution becomes weight norm's pair: original1 is the weight itself, original0 its norm over all
    dimensions but the first (arXiv:1602.07868). Norms stay float32, because rounding a norm would scale a whole row.
    """
    official: dict[str, Tensor] = {}
    for own, tensor in state.items():
        name, half = part.names.to_official(own), tensor.detach().to("cpu", torch.float16).contiguous()
        if part.part == "hift" and tensor.dim() == 3 and not own.startswith(_WITHOUT_WEIGHT_NORM):
            stem = name.removesuffix(".weight") + _NORM
            official[stem + "0"] = torch.linalg.vector_norm(half.float(), dim=(1, 2), keepdim=True)
            official[stem + "1"] = half
        else:
            official[name] = half
    return official


FIRST_MAGNITUDE = -3.0
"""Natural logarithm of the output magnitudes before training: below the clipping limit, so that gradients exist."""
FIRST_PITCH_HZ = 100.0


def initialise(model: HiFT | CausalHiFT) -> None:
    """Change PyTorch's initial weights, so that the output is quiet and the predicted pitch is around 100 Hz."""
    bins = model.config.n_fft // 2 + 1
    with torch.no_grad():
        model.conv_post.get_parameter("bias")[:bins] = FIRST_MAGNITUDE
        model.f0.out.weight.mul_(FIRST_PITCH_HZ)
        model.f0.out.bias.fill_(FIRST_PITCH_HZ)
