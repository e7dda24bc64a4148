"""Read a TensorRT-LLM checkpoint as the Qwen2 model that its engine computes: give its tensors by Hugging Face's names,
compare its logits with the source's, and write a model folder that can speak.

The shards are joined. A quantised matrix is read as the product of whole numbers and scales that the engine computes.
SmoothQuant's division of the inputs stays in norms, and is undone in the other weights. `Reread.effects` gives the
engine's rounding of activations: the inputs of int8 products, and the int8 cache of keys and values.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from vivavoce.checkpoint.config import qwen2_of
from vivavoce.checkpoint.folder import read_json
from vivavoce.checkpoint.settings import read_config
from vivavoce.checkpoint.weights import LM_NAMES
from vivavoce.files import fresh_folder
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce_export.files import DTYPES, TensorFile, blank, check_target, naming
from vivavoce_export.hf_folder import CONFIG, Source, read_bias
from vivavoce_export.merged_lm import (
    ALL_ROWS,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    HEAD_BIAS,
    MappedWeights,
    TensorReader,
    official_tensors,
)
from vivavoce_export.trtllm.calibration import Change, LayerEffects, Prompt, hidden_states
from vivavoce_export.trtllm.convert import RECORD, TABLES, RankPlan, rank_path
from vivavoce_export.trtllm.layers import (
    CACHE_SCALE,
    INT8_LIMIT,
    MATRICES,
    NORMS,
    QKV_BIAS,
    ShardCut,
    dequantise,
    joined,
    round_trip,
)
from vivavoce_export.trtllm.options import BITS, read_checkpoint_config
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary

WRITTEN_BACK = "written_back.json"
"""File that `write_back` puts into its folder. With --force, only folders that have this file are replaced."""
_WEIGHTS = "llm.safetensors"
_LM_FILES = "llm*"
_REMEDY = "convert the model again"


class Reread:
    """Reads a checkpoint as the tensors of the merged model; it builds one tensor at a time."""

    def __init__(self, folder: Path) -> None:
        """Open a folder that `convert` made. CheckpointError: files are missing or corrupt."""
        config = read_json(folder / CONFIG, _REMEDY)
        record = read_json(folder / RECORD, _REMEDY) if (folder / RECORD).is_file() else {}
        self.sizes, options = read_checkpoint_config(config, record)
        self.plan = RankPlan(self.sizes, options, DTYPES[options.dtype])
        self._ranks = [MappedWeights(rank_path(folder, rank)) for rank in range(options.world)]
        self._bias = read_bias(folder, self.sizes.vocab_size)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.sizes.shapes | ({} if self._bias is None else {HEAD_BIAS: (self.sizes.vocab_size,)})

    def read(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Read a tensor, or some rows of it, in float32 if the tensor was quantised, else in the stored dtype."""
        if name == HEAD_BIAS and self._bias is not None:
            return self._bias[rows].clone()
        if name in (EMBEDDING, FINAL_NORM, HEAD):
            return self._table(name, rows)
        _, _, index, inner = name.split(".", 3)
        return self._layer_tensor(int(index), inner)[rows]

    def effects(self, layer: int) -> LayerEffects:
        """Return the functions that round a layer's activations as the engine does."""
        options = self.plan.options
        changes: dict[str, Change] = {}
        for name, matrix in MATRICES.items() if options.smoothquant is not None else ():
            changes |= dict.fromkeys(matrix.parts, self._int8_inputs(layer, name))
        cached = partial(_int8, to_int=1 / self._all(layer, CACHE_SCALE)[0]) if options.int8_kv_cache else None
        return changes, cached

    def _table(self, name: str, rows: slice) -> Tensor:
        ours, ranks, per_gpu = TABLES[name], self.plan.ranks_of_table(name), self.plan.rows_per_gpu(name)
        if per_gpu is None:
            return self._ranks[ranks[0]].read(ours, rows)
        start, stop, _ = rows.indices(self.sizes.vocab_size)
        pieces = [
            self._ranks[rank].read(ours, slice(max(start - first, 0), min(stop - first, per_gpu)))
            for rank, first in zip(ranks, range(0, per_gpu * len(ranks), per_gpu), strict=True)
            if first < stop and first + per_gpu > start
        ]
        return torch.cat(pieces)

    def _layer_tensor(self, layer: int, inner: str) -> Tensor:
        module, kind = inner.rsplit(".", 1)
        for ours, theirs in NORMS.items():
            if module == theirs:
                return self._all(layer, f"{ours}.weight")[0]
        name = next(name for name, matrix in MATRICES.items() if module in matrix.parts)
        if kind == "weight":
            whole = self._matrix(layer, name)
        else:
            whole = joined(self._all(layer, QKV_BIAS), ShardCut.QKV, self.sizes)
        parts = MATRICES[name].parts
        return whole.split(self.sizes.qkv_rows)[parts.index(module)] if len(parts) > 1 else whole

    def _matrix(self, layer: int, name: str) -> Tensor:
        """Return the matrix [outputs, inputs] that computes the engine's outputs from inputs before their smoothing."""
        options, weights = self.plan.options, self._all(layer, f"{name}.weight")
        if options.weight_only is not None:
            bits = BITS[options.weight_only]
            if options.prequantize is None:
                weights = [round_trip(weight, bits) for weight in weights]
            else:
                scales = self._all(layer, f"{name}.per_channel_scale")
                weights = [
                    dequantise(weight, scale, bits, options.prequantize)
                    for weight, scale in zip(weights, scales, strict=True)
                ]
        elif options.smoothquant is not None:
            weights = self._smoothed(layer, name, weights)
        return joined(weights, MATRICES[name].cut, self.sizes)

    def _smoothed(self, layer: int, name: str, weights: Sequence[Tensor]) -> list[Tensor]:
        scales, matrix = self._all(layer, f"{name}.per_channel_scale"), MATRICES[name]
        if not self.plan.options.per_token:
            # The stored factor maps sums to int8 outputs. Remove the scales of the outputs and of the inputs from it.
            of_output, of_input = self._all(layer, f"{name}.act_scale")[0], self._all(layer, matrix.input_scale)[0]
            scales = [scale * of_output * of_input for scale in scales]
        wide = [weight.float() * scale.reshape(-1, 1) for weight, scale in zip(weights, scales, strict=True)]
        if matrix.cut is not ShardCut.COLUMNS:
            return wide
        return [weight / smoother for weight, smoother in zip(wide, self._all(layer, f"{name}.smoother"), strict=True)]

    def _int8_inputs(self, layer: int, name: str) -> Change:
        options, matrix = self.plan.options, MATRICES[name]
        by_columns = matrix.cut is ShardCut.COLUMNS
        smoother = torch.cat(self._all(layer, f"{name}.smoother"), dim=1)[0] if by_columns else torch.ones(1)
        if not options.per_token:
            to_int = self._all(layer, matrix.input_scale)[0]
            return lambda given: _int8(given / smoother, to_int) * smoother

        def by_row(given: Tensor) -> Tensor:
            # Each GPU scales its own part of the inputs by the range of that part.
            parts = (given / smoother).chunk(options.tp if by_columns else 1, dim=-1)
            return torch.cat([_int8(part, _row_scale(part)) for part in parts], dim=-1) * smoother

        return by_row

    def _all(self, layer: int, name: str) -> list[Tensor]:
        full = self.plan.layer_prefix(layer) + name
        return [self._ranks[rank].read(full) for rank in self.plan.ranks_of_layer(layer)]


def _int8(values: Tensor, to_int: Tensor) -> Tensor:
    return (values * to_int).round().clamp(-INT8_LIMIT - 1, INT8_LIMIT) / to_int


def _row_scale(values: Tensor) -> Tensor:
    return INT8_LIMIT / values.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)


@dataclass(frozen=True)
class LogitsCheck:
    """Differences of logits, over all positions that predict speech and all ids that can be chosen.

    relative_error: Euclidean norm of the differences, divided by the norm of the source's logits; top1_agreement: share
    of the positions at which the same id has the largest logit in both models.
    """

    relative_error: float
    largest_error: float
    top1_agreement: float
    num_positions: int


@torch.inference_mode()
def compare_logits(
    source: Source, checkpoint: Reread, prompts: Sequence[Prompt], layer_done: Callable[[], None] = lambda: None
) -> LogitsCheck:
    """Compare the logits of both models, which run by layers and by blocks of the head. layer_done: after each layer.

    The source runs in float32. The checkpoint has the weights and the rounding of its TensorRT engine; all other matrix
    products are in float32.
    """
    models = (
        hidden_states(source.sizes, source.reader, prompts, layer_done=layer_done),
        hidden_states(checkpoint.sizes, checkpoint, prompts, effects=checkpoint.effects, layer_done=layer_done),
    )
    exact, rounded = (
        torch.cat([rows[prompt.spoken_from :] for rows, prompt in zip(hidden, prompts, strict=True)])
        for hidden in models
    )
    squares, total, largest = 0.0, 0.0, 0.0
    best: list[tuple[Tensor, Tensor]] = []
    for block in source.sizes.table_blocks:
        bias = torch.zeros(block.stop - block.start) if source.bias is None else source.bias[block]
        choosable = bias.isfinite()
        if not choosable.any():
            continue
        wanted, found = (
            hidden @ reader.read(HEAD, block).float()[choosable].t() + bias[choosable]
            for hidden, reader in ((exact, source.reader), (rounded, checkpoint))
        )
        error = found - wanted
        squares += error.double().square().sum().item()
        total += wanted.double().square().sum().item()
        largest = max(largest, error.abs().max().item())
        values, indices = torch.stack((wanted, found)).max(dim=-1)
        best.append((values, torch.arange(block.start, block.stop)[choosable][indices]))
    values, ids = (torch.stack(column) for column in zip(*best, strict=True))  # both [blocks, 2, positions]
    first, second = ids.gather(0, values.argmax(dim=0, keepdim=True))[0]
    agreement = (first == second).double().mean().item()
    return LogitsCheck((squares / total) ** 0.5 if total else 0.0, largest, agreement, len(exact))


def write_back(
    reader: TensorReader, official: Path, target: Path, vocabulary: MergedVocabulary, *, force: bool = False
) -> None:
    """Write a model folder in the official layout that speaks with the merged model. Memory use is bounded.

    official: the model's official folder; its other parts are copied. vocabulary: of the merged model. force: replace
    an earlier result. InvalidRequest: the target has other content.
    """
    check_target(target, official, force=force, mark=WRITTEN_BACK, field="write-back")
    with torch.device("meta"):
        state = SpeechLM(qwen2_of(read_config(official, ()).lm)).state_dict()
    specs = {LM_NAMES.to_official(name): blank(tuple(tensor.shape), torch.float32) for name, tensor in state.items()}
    with fresh_folder(target) as folder:
        with naming(folder):
            shutil.copytree(official, folder, ignore=shutil.ignore_patterns(_LM_FILES), dirs_exist_ok=True)
            (folder / WRITTEN_BACK).write_text(json.dumps({"lm": _WEIGHTS}) + "\n", encoding="utf-8")
        with closing(TensorFile(folder / _WEIGHTS, specs)) as file:
            for name, row, tensor in official_tensors(reader, vocabulary):
                file.write(name, tensor.float(), row)
