"""A Qwen2 model that is run one layer at a time, through our own layers: the model itself never is in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vivavoce.checkpoint.names import LM_NAMES
from vivavoce.export.merged_lm import EMBEDDING, TensorReader
from vivavoce.export.trtllm.layers import cast
from vivavoce.export.trtllm.prompts import Prompt
from vivavoce.export.trtllm.ranges import LINEARS
from vivavoce.export.trtllm.sizes import QwenSizes
from vivavoce.export.trtllm.source import FINAL_NORM, read_layer
from vivavoce.models.layers.norm import RMSNorm
from vivavoce.models.layers.rope import rotary_tables
from vivavoce.models.lm.qwen2 import Layer

Change = Callable[[Tensor], Tensor]
"""What an engine's whole numbers make of a tensor: the same shape, other values."""
Observer = Callable[[int, str, Tensor, Tensor], None]
"""Is told the layer, a matrix's Hugging Face name within it, what it was given and what it made: [1, time, …]."""
TABLE_BLOCK = 4 << 20
"""Values of the embedding or the head that are read at a time."""
_WITHOUT_ROUNDING = "calibration computes in it, so give recorded ranges, or leave out what calibrates"


@dataclass(frozen=True)
class LayerEffects:
    """What an engine rounds in a layer beside the weights."""

    inputs: Mapping[str, Change] = field(default_factory=dict)
    """By a matrix's Hugging Face name within the layer: what happens to its inputs [..., inputs]."""
    cached: Change | None = None
    """What happens to keys and values [..., head_dim]."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """Everything of a model but its head.

    reader: tensors by Hugging Face's names; rounded_to: weights are rounded to this dtype, products are float32;
    effects: of each layer, if its engine has any.
    """

    sizes: QwenSizes
    reader: TensorReader
    rounded_to: torch.dtype | None = None
    effects: Callable[[int], LayerEffects] | None = None

    @torch.inference_mode()
    def hidden_states(
        self, prompts: Sequence[Prompt], observe: Observer | None = None, layer_done: Callable[[], None] = lambda: None
    ) -> list[Tensor]:
        """After the final norm, [time, hidden] float32 for each prompt. Each prompt runs on its own.

        Raises:
            CheckpointError: `rounded_to` cannot hold a weight.
        """
        rows = [row[None] for row in self._embedded(prompts)]
        for index in range(self.sizes.num_layers):
            layer, effects = self._layer(index), self.effects(index) if self.effects else LayerEffects()
            for name, change in effects.inputs.items():
                _linear(layer, name).register_forward_pre_hook(lambda _, given, change=change: change(given[0]))
            if observe is not None:
                _observe(layer, index, observe)
            rows = [self._run(layer, row, effects.cached) for row in rows]
            layer_done()
        norm = RMSNorm(self.sizes.hidden_size, self.sizes.rms_norm_eps)
        norm.weight = nn.Parameter(self._wide(self.reader.read(FINAL_NORM), FINAL_NORM), requires_grad=False)
        return [norm(row)[0] for row in rows]

    def _embedded(self, prompts: Sequence[Prompt]) -> list[Tensor]:
        ids = torch.tensor([one for prompt in prompts for one in prompt.ids])
        rows = torch.zeros(len(ids), self.sizes.hidden_size)
        for block in table_blocks(self.sizes):
            here = (ids >= block.start) & (ids < block.stop)
            if here.any():
                rows[here] = self._wide(self.reader.read(EMBEDDING, block)[ids[here] - block.start], EMBEDDING)
        return list(rows.split([len(prompt.ids) for prompt in prompts]))

    def _layer(self, index: int) -> Layer:
        with torch.device("meta"):
            layer = Layer(self.sizes.backbone())
        state = {
            _own_name(name): self._wide(tensor, f"model.layers.{index}.{name}")
            for name, tensor in read_layer(self.reader, self.sizes, index).items()
        }
        layer.load_state_dict(state, assign=True)
        return layer.requires_grad_(False)

    def _run(self, layer: Layer, row: Tensor, cached: Change | None) -> Tensor:
        positions = torch.arange(row.shape[1])[None]
        cos, sin = rotary_tables(positions, self.sizes.head_size, self.sizes.rope_theta)
        mask = torch.arange(row.shape[1]) <= positions[:, None, :, None]
        kept: Change = cached or (lambda tensor: tensor)
        made: Tensor = layer(row, cos, sin, mask, lambda key, value: (kept(key), kept(value)))
        return made

    def _wide(self, tensor: Tensor, name: str) -> Tensor:
        return (tensor if self.rounded_to is None else cast(tensor, self.rounded_to, name, _WITHOUT_ROUNDING)).float()


def table_blocks(sizes: QwenSizes) -> list[slice]:
    """The rows of the embedding and of the head, in blocks of a bounded size."""
    return row_blocks(sizes.vocab_size, sizes.hidden_size)


def row_blocks(num_rows: int, width: int) -> list[slice]:
    """The rows of a table of `width` columns, in blocks of a bounded size."""
    step = max(1, TABLE_BLOCK // width)
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def _observe(layer: Layer, index: int, observe: Observer) -> None:
    for name in LINEARS:
        _linear(layer, name).register_forward_hook(
            lambda _, given, made, name=name: observe(index, name, given[0], made)
        )


def _linear(layer: Layer, name: str) -> nn.Module:
    return layer.get_submodule(_own_name(name))


def _own_name(name: str) -> str:
    return LM_NAMES.to_ours(f"llm.model.model.layers.0.{name}").removeprefix("layers.0.")
