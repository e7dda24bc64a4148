"""The ranges of activations: recorded before, or measured by running the model on prompts of speech."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.export.named_errors import naming
from vivavoce.export.trtllm.backbone import Backbone
from vivavoce.export.trtllm.prompts import Prompt, check_ids, read_prompts
from vivavoce.export.trtllm.ranges import LINEARS, LayerRanges
from vivavoce.export.trtllm.safetensors_folder import SafetensorsFiles
from vivavoce.export.trtllm.sizes import QwenSizes
from vivavoce.export.trtllm.source import Source, layer_shapes

_IDS = "calibration_ids"


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
            # numpy has no bfloat16.
            mark.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return mark.hexdigest()

    def check_fits(self, sizes: QwenSizes) -> None:
        """Refuse what a conversion that needs ranges cannot use.

        Raises:
            InvalidRequest: there are neither prompts nor recorded ranges, or some ranges are missing.
            CheckpointError: recorded ranges are of another model or not finite.
        """
        if self.recorded is not None:
            _check_ranges(self.recorded, sizes, "what was recorded")
        elif not self.prompts:
            raise InvalidRequest(
                "calibration: the model brings no voice with a recording's text and tokens; give --calibration FILE"
            )


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
    ids = tensors.pop(_IDS, torch.zeros(0, 0, dtype=torch.int64))
    _check_ranges(tensors, source.sizes, path.name)
    return Calibration(_prompts(ids, source, path), tensors)


def measure(source: Source, prompts: tuple[Prompt, ...], layer_done: Callable[[], None]) -> dict[str, Tensor]:
    """Run the model with float16 weights on the prompts: `LayerRanges.saved` of every layer.

    Args:
        source: the model.
        prompts: at least one.
        layer_done: called after each layer.

    Raises:
        CheckpointError: float16 cannot hold a weight, or what the model computes is not finite.
    """
    layers = [LayerRanges() for _ in range(source.sizes.num_layers)]
    backbone = Backbone(source.sizes, source.reader, rounded_to=torch.float16)
    backbone.hidden_states(prompts, lambda index, name, given, made: layers[index].see(name, given, made), layer_done)
    ranges = {name: tensor for index, layer in enumerate(layers) for name, tensor in layer.saved(index).items()}
    _check_ranges(ranges, source.sizes, "the model itself")
    return ranges


def write_ranges(path: Path, ranges: Mapping[str, Tensor]) -> None:
    """As `read_calibration` reads them."""
    new = path.with_suffix(".new")
    with naming(new):
        new.write_bytes(save({name: tensor.contiguous() for name, tensor in ranges.items()}))
    new.replace(path)


def _prompts(ids: Tensor, source: Source, path: Path) -> tuple[Prompt, ...]:
    if ids.dim() != 2 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        dtype = str(ids.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"calibration: {_IDS} of {path.name} are {list(ids.shape)} {dtype} and not [prompts, time] of whole "
            "numbers; record the ranges again"
        )
    rows = [tuple(row) for row in ids.tolist() if row]
    for row in rows:
        check_ids(f"{_IDS} of {path.name}", row, source.sizes.vocab_size)
    return tuple(Prompt(row) for row in rows)


def _check_ranges(ranges: Mapping[str, Tensor], sizes: QwenSizes, origin: str) -> None:
    """Refuse ranges that are missing, of other sizes, or no sizes of numbers."""
    wanted = _range_shapes(sizes)
    if missing := [name for name in wanted if name not in ranges]:
        raise InvalidRequest(f"calibration: {origin} has no {missing[0]}; record the ranges with this model")
    for name, shape in wanted.items():
        largest = ranges[name].float()
        if largest.shape != shape:
            raise CheckpointError(
                f"calibration: {origin} is of a model of other sizes, {name} is {list(largest.shape)} instead of "
                f"{list(shape)}; record the ranges with this one"
            )
        if not bool((largest.isfinite() & (largest >= 0)).all()):
            raise CheckpointError(
                f"calibration: {name} of {origin} has values that are no finite numbers from 0 on; record the ranges "
                "again"
            )


def _range_shapes(sizes: QwenSizes) -> dict[str, tuple[int, ...]]:
    """Of all names of `LayerRanges.saved`, for every layer."""
    weights = layer_shapes(sizes)
    return {
        f"model.layers.{layer}.{name}.{side}": (weights[f"{name}.weight"][axis],)
        for layer in range(sizes.num_layers)
        for side, axis in (("x", 1), ("y", 0))
        for name in LINEARS
    }
