"""Which tensors each GPU's file holds, and the pieces of work that fill them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vivavoce.export.merged_lm import EMBEDDING, HEAD
from vivavoce.export.trtllm.backbone import table_blocks
from vivavoce.export.trtllm.layers import cast, convert_layer
from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.ranges import LINEARS, LayerRanges
from vivavoce.export.trtllm.rank_file import RankFile, TensorSpec
from vivavoce.export.trtllm.sharding import rows_per_gpu
from vivavoce.export.trtllm.sizes import QwenSizes
from vivavoce.export.trtllm.source import FINAL_NORM, Source, layer_shapes

EMBEDDING_NAME = "transformer.vocab_embedding.weight"
HEAD_NAME = "lm_head.weight"
FINAL_NORM_NAME = "transformer.ln_f.weight"


@dataclass(frozen=True)
class Plan:
    """One conversion's tensors. dtype: of everything that is not quantised."""

    sizes: QwenSizes
    options: ConvertOptions
    dtype: torch.dtype

    @property
    def layers_per_stage(self) -> int:
        """Layers of each GPU that takes turns."""
        return self.sizes.num_layers // self.options.pp

    def ranks_of_layer(self, layer: int) -> range:
        """The files that a layer is in."""
        first = layer // self.layers_per_stage * self.options.tp
        return range(first, first + self.options.tp)

    def ranks_of_table(self, name: str) -> range:
        """The files that the embedding or the head is in: the first stage's, the last stage's."""
        first = 0 if name == EMBEDDING else self.options.world - self.options.tp
        return range(first, first + self.options.tp)

    def layer_prefix(self, layer: int) -> str:
        """What stands before the names of a layer's tensors: stages count their own layers."""
        return f"transformer.layers.{layer % self.layers_per_stage}."

    def is_shared(self, table: str) -> bool:
        """Whether a table's rows are divided among the GPUs that share a layer."""
        return table == HEAD or self.options.parallel_embedding

    def specs(self, rank: int) -> dict[str, TensorSpec]:
        """All tensors of a rank's file by name."""
        stage, tp_rank = divmod(rank, self.options.tp)
        of_layer = self._layer_specs()[tp_rank]
        found = {
            f"transformer.layers.{layer}.{name}": spec
            for layer in range(self.layers_per_stage)
            for name, spec in of_layer.items()
        }
        if stage == 0:
            found[EMBEDDING_NAME] = self._table_spec(EMBEDDING)
        if stage == self.options.pp - 1:
            found[FINAL_NORM_NAME] = TensorSpec((self.sizes.hidden_size,), self.dtype)
            found[HEAD_NAME] = self._table_spec(HEAD)
        return found

    def _table_spec(self, table: str) -> TensorSpec:
        rows = self.sizes.vocab_size
        if self.is_shared(table):
            rows = rows_per_gpu(rows, self.options.tp)
        return TensorSpec((rows, self.sizes.hidden_size), self.dtype)

    def _layer_specs(self) -> list[dict[str, TensorSpec]]:
        """Of one layer for each GPU that shares it: the conversion itself, on tensors without values."""
        with torch.device("meta"):
            layer = {name: torch.empty(shape) for name, shape in layer_shapes(self.sizes).items()}
            ranges = LayerRanges(
                {name: torch.empty(layer[f"{name}.weight"].shape[1]) for name in LINEARS},
                {name: torch.empty(layer[f"{name}.weight"].shape[0]) for name in LINEARS},
            )
            made = convert_layer(layer, ranges, self.options, self.sizes, self.dtype)
        return [{name: TensorSpec(tuple(t.shape), t.dtype) for name, t in tensors.items()} for tensors in made]


@dataclass(frozen=True, eq=False)
class Filling:
    """Fills the files of a plan from a source, one piece of work at a time."""

    plan: Plan
    source: Source
    ranges: Mapping[str, Tensor]
    """`LayerRanges.saved` of every layer; empty if the plan needs none."""
    files: Sequence[RankFile]

    def pieces(self) -> dict[str, Callable[[], None]]:
        """All pieces of work by name. Each holds one layer, or one block of a table, in memory; any order will do."""
        sizes = self.plan.sizes
        layers = {f"layer {index}": partial(self._fill_layer, index) for index in range(sizes.num_layers)}
        tables = {
            f"{table} {block.start}": partial(self._fill_rows, table, block)
            for table in (EMBEDDING, HEAD)
            for block in table_blocks(sizes)
        }
        return {**layers, **tables, FINAL_NORM: self._fill_norm}

    def _fill_layer(self, index: int) -> None:
        plan = self.plan
        ranges = LayerRanges.read(self.ranges, index) if plan.options.needs_calibration else None
        made = convert_layer(self.source.layer(index), ranges, plan.options, plan.sizes, plan.dtype)
        for rank, tensors in zip(plan.ranks_of_layer(index), made, strict=True):
            for name, tensor in tensors.items():
                self.files[rank].write(plan.layer_prefix(index) + name, tensor)

    def _fill_rows(self, table: str, block: slice) -> None:
        plan = self.plan
        rows = cast(self.source.reader.read(table, block), plan.dtype, table)
        name = EMBEDDING_NAME if table == EMBEDDING else HEAD_NAME
        per_gpu = rows_per_gpu(plan.sizes.vocab_size, plan.options.tp)
        for tp_rank, rank in enumerate(plan.ranks_of_table(table)):
            first, end = (tp_rank * per_gpu, (tp_rank + 1) * per_gpu) if plan.is_shared(table) else (0, block.stop)
            low, high = max(block.start, first), min(block.stop, end)
            if low < high:
                self.files[rank].write(name, rows[low - block.start : high - block.start], row=low - first)

    def _fill_norm(self) -> None:
        norm = cast(self.source.reader.read(FINAL_NORM), self.plan.dtype, FINAL_NORM)
        for rank in self.plan.ranks_of_table(HEAD):
            self.files[rank].write(FINAL_NORM_NAME, norm)
