"""The ranges of activations: recorded before, or measured by running the model on prompts of speech."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export.trtllm.backbone import Backbone
from vivavoce.export.trtllm.prompts import Prompt, read_prompts
from vivavoce.export.trtllm.ranges import LayerRanges
from vivavoce.export.trtllm.safetensors_folder import SafetensorsFiles
from vivavoce.export.trtllm.source import Source


@dataclass(frozen=True, eq=False)
class Calibration:
    """Prompts to measure on, or what was measured on some before: `LayerRanges.saved` of every layer."""

    prompts: tuple[Prompt, ...] = ()
    recorded: Mapping[str, Tensor] | None = None

    def digest(self) -> str:
        """Tells one calibration from another."""
        mark = hashlib.sha256(json.dumps([prompt.ids for prompt in self.prompts]).encode())
        for name, tensor in sorted((self.recorded or {}).items()):
            mark.update(name.encode())
            mark.update(tensor.contiguous().numpy().tobytes())
        return mark.hexdigest()


def read_calibration(path: Path, source: Source) -> Calibration:
    """A file of prompts (`read_prompts`), or of recorded ranges (safetensors), whose prompts are known if it has
    `calibration_ids` [prompts, time].

    Raises:
        InvalidRequest, CheckpointError: it cannot be used with this model.
    """
    if path.suffix != ".safetensors":
        return Calibration(read_prompts(path, source))
    file = SafetensorsFiles([path])
    tensors = {name: file.read(name) for name in file.shapes}
    ids = tensors.pop("calibration_ids", torch.zeros(0, 0, dtype=torch.int64))
    _check_recorded(tensors, source, path)
    return Calibration(tuple(Prompt(tuple(row)) for row in ids.tolist()), tensors)


def measure(source: Source, prompts: tuple[Prompt, ...], layer_done: Callable[[], None]) -> dict[str, Tensor]:
    """Run the model with float16 weights on the prompts: `LayerRanges.saved` of every layer.

    Raises:
        InvalidRequest: there are no prompts.
    """
    if not prompts:
        raise InvalidRequest(
            "calibration: the model brings no voice with a recording's text and tokens; give --calibration FILE"
        )
    layers = [LayerRanges() for _ in range(source.sizes.num_layers)]
    backbone = Backbone(source.sizes, source.reader, rounded_to=torch.float16)
    backbone.hidden_states(prompts, lambda index, name, given, made: layers[index].see(name, given, made), layer_done)
    return {name: tensor for index, layer in enumerate(layers) for name, tensor in layer.saved(index).items()}


def write_ranges(path: Path, ranges: Mapping[str, Tensor]) -> None:
    """As `read_calibration` reads them."""
    new = path.with_suffix(".new")
    save_file({name: tensor.contiguous() for name, tensor in ranges.items()}, new)
    new.replace(path)


def _check_recorded(tensors: Mapping[str, Tensor], source: Source, path: Path) -> None:
    try:
        layers = [LayerRanges.read(tensors, index) for index in range(source.sizes.num_layers)]
    except KeyError as error:
        raise InvalidRequest(
            f"calibration: {path.name} has no {error.args[0]}; record the ranges with this model"
        ) from None
    hidden, inner = source.sizes.hidden_size, source.sizes.intermediate_size
    if any(
        layer.inputs["self_attn.q_proj"].shape != (hidden,) or layer.inputs["mlp.down_proj"].shape != (inner,)
        for layer in layers
    ):
        raise CheckpointError(f"calibration: {path.name} is of a model of other sizes; record the ranges with this one")
