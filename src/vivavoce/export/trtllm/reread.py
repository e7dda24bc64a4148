"""A TensorRT-LLM checkpoint → the Qwen2 model that its engine would compute, by Hugging Face's names.

All shards are put together; matrices that are or will be quantised are what the engine makes of their whole numbers.
SmoothQuant's division of inputs stays where a norm does it, and is undone in the other weights. What an engine rounds
beside the weights, inputs of int8 products and the int8 cache, is told as `LayerEffects`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError
from vivavoce.export.hf.config import read_json
from vivavoce.export.hf.head_bias import read_bias
from vivavoce.export.hf.write import CONFIG, EMBEDDING_BIAS
from vivavoce.export.merged_lm import ALL_ROWS, EMBEDDING, HEAD, HEAD_BIAS
from vivavoce.export.trtllm import weight_only
from vivavoce.export.trtllm.backbone import Change, LayerEffects
from vivavoce.export.trtllm.config_json import WEIGHT_ONLY
from vivavoce.export.trtllm.convert import RECORD
from vivavoce.export.trtllm.earlier import rank_path
from vivavoce.export.trtllm.layers import CUTS, INPUT_SCALE, NORMS, QKV, SINGLE
from vivavoce.export.trtllm.options import BITS, DTYPES, ConvertOptions
from vivavoce.export.trtllm.rank_tensors import EMBEDDING_NAME, FINAL_NORM_NAME, HEAD_NAME, Plan
from vivavoce.export.trtllm.safetensors_folder import SafetensorsFiles
from vivavoce.export.trtllm.sharding import Cut, joined
from vivavoce.export.trtllm.sizes import QwenSizes
from vivavoce.export.trtllm.source import FINAL_NORM, layer_shapes

_INT8_LIMIT = 127
_REMEDY = "convert the model again"


class Reread:
    """A checkpoint as a reader of the merged model's tensors; one tensor is put together at a time."""

    def __init__(self, folder: Path) -> None:
        """Open what `convert` wrote.

        Raises:
            CheckpointError: files are missing or corrupt.
        """
        self.plan = _read_plan(folder)
        self._ranks = [SafetensorsFiles([rank_path(folder, rank)]) for rank in range(self.plan.options.world)]
        self._bias = read_bias(folder)
        if self._bias is not None and self._bias.shape != (self.sizes.vocab_size,):
            raise CheckpointError(
                f"{EMBEDDING_BIAS}: is {list(self._bias.shape)} instead of [{self.sizes.vocab_size}]; {_REMEDY}"
            )

    @property
    def sizes(self) -> QwenSizes:
        """Of the model."""
        return self.plan.sizes

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by Hugging Face's name."""
        sizes = self.sizes
        table = (sizes.vocab_size, sizes.hidden_size)
        layers = {
            f"model.layers.{index}.{name}": shape
            for index in range(sizes.num_layers)
            for name, shape in layer_shapes(sizes).items()
        }
        bias = {} if self._bias is None else {HEAD_BIAS: table[:1]}
        return {EMBEDDING: table, **layers, FINAL_NORM: table[1:], HEAD: table, **bias}

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """One tensor, or some rows of it: float32 if it was quantised, else as it is stored."""
        if name == HEAD_BIAS and self._bias is not None:
            return self._bias[rows].clone()
        if name in (EMBEDDING, HEAD):
            return self._table(name, rows)
        if name == FINAL_NORM:
            return self._ranks[self.plan.ranks_of_table(HEAD)[0]].read(FINAL_NORM_NAME)[rows]
        _, _, index, inner = name.split(".", 3)
        return self._layer_tensor(int(index), inner)[rows]

    def effects(self, layer: int) -> LayerEffects:
        """What the engine rounds in a layer beside the weights."""
        options, inputs = self.plan.options, {}
        if options.smoothquant is not None:
            inputs = {hf: self._int8_inputs(layer, ours) for ours, hf in SINGLE.items()}
            inputs |= dict.fromkeys(QKV, self._int8_inputs(layer, "attention.qkv"))
        scale = self._first(layer, "attention.kv_cache_scaling_factor") if options.int8_kv_cache else None
        return LayerEffects(inputs, None if scale is None else partial(_int8, to_int=1 / scale))

    def _table(self, name: str, rows: slice) -> Tensor:
        ours, ranks = (EMBEDDING_NAME if name == EMBEDDING else HEAD_NAME), self.plan.ranks_of_table(name)
        if not self.plan.is_shared(name):
            return self._ranks[ranks[0]].read(ours, rows)
        start, stop, _ = rows.indices(self.sizes.vocab_size)
        per_gpu = self._ranks[ranks[0]].shapes[ours][0]
        pieces = [
            self._ranks[rank].read(ours, slice(max(start - first, 0), min(stop - first, per_gpu)))
            for rank, first in zip(ranks, range(0, per_gpu * len(ranks), per_gpu), strict=True)
            if first < stop and first + per_gpu > start
        ]
        return torch.cat(pieces)

    def _layer_tensor(self, layer: int, inner: str) -> Tensor:
        module, kind = inner.rsplit(".", 1)
        for ours, hf in NORMS.items():
            if module == hf:
                return self._first(layer, f"{ours}.weight")
        for ours, hf in SINGLE.items():
            if module == hf:
                return self._matrix(layer, ours)
        fused = self._matrix(layer, "attention.qkv") if kind == "weight" else self._qkv_bias(layer)
        return fused.split(self.sizes.qkv_rows)[QKV.index(module)]

    def _qkv_bias(self, layer: int) -> Tensor:
        return joined(self._all(layer, "attention.qkv.bias"), Cut.QKV, self.sizes)

    def _matrix(self, layer: int, name: str) -> Tensor:
        """[outputs, inputs] as the engine multiplies by it, on inputs that no smoother has divided."""
        options, weights = self.plan.options, self._all(layer, f"{name}.weight")
        if options.weight_only is not None:
            weights = self._weight_only(layer, name, weights, BITS[options.weight_only])
        elif options.smoothquant is not None:
            weights = self._smoothed(layer, name, weights)
        return joined(weights, CUTS[name], self.sizes)

    def _weight_only(self, layer: int, name: str, weights: Sequence[Tensor], bits: int) -> list[Tensor]:
        layout = self.plan.options.prequantize
        if layout is None:
            return [weight_only.round_trip(weight, bits) for weight in weights]
        scales = self._all(layer, f"{name}.per_channel_scale")
        return [
            weight_only.dequantise(weight_only.WeightOnly(weight, scale), bits, layout)
            for weight, scale in zip(weights, scales, strict=True)
        ]

    def _smoothed(self, layer: int, name: str, weights: Sequence[Tensor]) -> list[Tensor]:
        scales = self._all(layer, f"{name}.per_channel_scale")
        if not self.plan.options.per_token:
            # The sums' scale is relative to the outputs' and holds the inputs'.
            of_output, of_input = self._first(layer, f"{name}.act_scale"), self._first(layer, _input_scale(name))
            scales = [scale * of_output * of_input for scale in scales]
        wide = [weight.float() * scale.reshape(-1, 1) for weight, scale in zip(weights, scales, strict=True)]
        if f"{name}.smoother" not in self._names_of_layer:
            return wide
        smoothers = self._all(layer, f"{name}.smoother")
        return [weight / smoother for weight, smoother in zip(wide, smoothers, strict=True)]

    def _int8_inputs(self, layer: int, name: str) -> Change:
        options = self.plan.options
        smoother = torch.ones(1)
        if f"{name}.smoother" in self._names_of_layer:
            smoother = torch.cat(self._all(layer, f"{name}.smoother"), dim=1)[0]
        if not options.per_token:
            to_int = self._first(layer, _input_scale(name))
            return lambda given: _int8(given / smoother, to_int) * smoother
        # Each GPU finds the scale of the inputs that it has.
        pieces = options.tp if CUTS[name] is Cut.COLUMNS else 1

        def by_row(given: Tensor) -> Tensor:
            parts = (given / smoother).chunk(pieces, dim=-1)
            return torch.cat([_int8(part, _row_scale(part)) for part in parts], dim=-1) * smoother

        return by_row

    @cached_property
    def _names_of_layer(self) -> frozenset[str]:
        return frozenset(name.removeprefix(self.plan.layer_prefix(0)) for name in self._ranks[0].shapes)

    def _all(self, layer: int, name: str) -> list[Tensor]:
        full = self.plan.layer_prefix(layer) + name
        return [self._ranks[rank].read(full) for rank in self.plan.ranks_of_layer(layer)]

    def _first(self, layer: int, name: str) -> Tensor:
        return self._ranks[self.plan.ranks_of_layer(layer)[0]].read(self.plan.layer_prefix(layer) + name)


def _input_scale(name: str) -> str:
    return INPUT_SCALE.get(name, INPUT_SCALE["mlp.fc"])  # gate and fc read the same


def _int8(values: Tensor, to_int: Tensor) -> Tensor:
    """What is left of numbers that were whole ones for a while."""
    return (values * to_int).round().clamp(-_INT8_LIMIT - 1, _INT8_LIMIT) / to_int


def _row_scale(values: Tensor) -> Tensor:
    return _INT8_LIMIT / values.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)


def _read_plan(folder: Path) -> Plan:
    config = read_json(folder / CONFIG, _REMEDY)
    record = read_json(folder / RECORD, _REMEDY) if (folder / RECORD).is_file() else {}
    try:
        sizes = QwenSizes(
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            vocab_size=config["vocab_size"],
            rms_norm_eps=config["norm_epsilon"],
            rope_theta=config["rotary_base"],
            max_positions=config["max_position_embeddings"],
            tied=config["tie_word_embeddings"],
        )
        mapping, quantization = config["mapping"], config["quantization"]
        algorithm = quantization["quant_algo"] or ""
        is_smooth = "_SQ_" in algorithm
        options = ConvertOptions(
            dtype=config["dtype"],
            tp=mapping["tp_size"],
            pp=mapping["pp_size"],
            weight_only={value: name for name, value in WEIGHT_ONLY.items()}.get(algorithm),
            prequantize=record.get("options", {}).get("prequantize"),
            int8_kv_cache=quantization["kv_cache_quant_algo"] == "INT8",
            parallel_embedding=config["use_parallel_embedding"],
            smoothquant=quantization["smoothquant_val"] if is_smooth else None,
            per_token="PER_TOKEN" in algorithm,
            per_channel="PER_CHANNEL" in algorithm,
        )
        return Plan(sizes, options, DTYPES[config["dtype"]])
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{CONFIG}: {error} is missing or no such value; {_REMEDY}") from None
