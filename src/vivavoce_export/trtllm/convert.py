"""Convert a merged Qwen2 model to a TensorRT-LLM checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.files import fresh_folder
from vivavoce_export.files import TensorFile, blank, cast, check_target, matches, naming
from vivavoce_export.hf_folder import CONFIG, Source, read_bias
from vivavoce_export.merged_lm import EMBEDDING, FINAL_NORM, HEAD, QwenSizes
from vivavoce_export.trtllm.calibration import Calibration, measure
from vivavoce_export.trtllm.layers import LINEARS, convert_layer
from vivavoce_export.trtllm.options import SIZES, ConvertOptions, checkpoint_config, chosen_dtype
from vivavoce_runtimes.merged_vocabulary import EMBEDDING_BIAS

RECORD = "conversion.json"
"""File with the options of the conversion. The next conversion and the comparison of logits read it."""
RANGES = "calibration.safetensors"
"""File with the measured ranges. Another conversion can use this file as its calibration."""
TABLES = {
    EMBEDDING: "transformer.vocab_embedding.weight",
    FINAL_NORM: "transformer.ln_f.weight",
    HEAD: "lm_head.weight",
}
"""The tensors outside the layers: Hugging Face's names → TensorRT-LLM's names."""
_FORMAT = 1
Progress = Callable[[str, int, int], None]
"""Called with the activity ("calibrating" or "converting"), and the finished and total numbers of layers and blocks."""


@dataclass(frozen=True)
class Conversion:
    """A complete checkpoint. num_bytes: size of all ranks' files; was_there: whether an earlier call wrote it."""

    folder: Path
    dtype: torch.dtype
    num_bytes: int
    was_there: bool


def convert(
    source: Source,
    target: Path,
    options: ConvertOptions,
    *,
    calibration: Calibration = Calibration(),
    workers: int = 1,
    force: bool = False,
    progress: Progress = lambda *_: None,
) -> Conversion:
    """Write the checkpoint: `config.json`, a file for each rank, and the head's bias if the source has one.

    Each of the `workers` (threads) holds one layer in memory; the written bytes do not depend on their number. The
    folder appears complete or not at all. An undamaged checkpoint of an identical call is kept, unless `force` is set.
    InvalidRequest: an option does not fit the model, the target has other content, or the calibration is missing.
    CheckpointError: source or calibration is damaged, or the dtype cannot hold its values.
    """
    if workers < 1:
        raise InvalidRequest(f"workers: {workers} is below 1; give the number of threads")
    options.check_fits(source.sizes)
    plan = RankPlan(source.sizes, options, chosen_dtype(options, source.dtype))
    texts = {
        RECORD: _record(source, plan, calibration),
        CONFIG: json.dumps(checkpoint_config(plan.sizes, options, plan.dtype), indent=4) + "\n",
    }
    if not force and _holds(target, plan, texts, source.bias):
        sizes = [rank_path(target, rank).stat().st_size for rank in range(options.world)]
        return Conversion(target, plan.dtype, sum(sizes), was_there=True)
    check_target(target, source.files[0].parent, force=force, mark=RECORD)
    if options.needs_calibration:
        calibration.check_fits(source.sizes)
    with fresh_folder(target) as folder:
        ranges = calibration.recorded or {}
        if options.needs_calibration and not ranges:
            done, layers = count(1), source.sizes.num_layers
            ranges = measure(source, calibration.prompts, lambda: progress("calibrating", next(done), layers))
            with naming(folder / RANGES):
                (folder / RANGES).write_bytes(save({**ranges}))
        num_bytes = _write_ranks(folder, plan, source, ranges, workers, progress)
        with naming(folder):
            if source.bias is not None:
                np.save(folder / EMBEDDING_BIAS, source.bias.numpy(), allow_pickle=False)
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="utf-8")
    return Conversion(target, plan.dtype, num_bytes, was_there=False)


def rank_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.safetensors"


def _record(source: Source, plan: RankPlan, calibration: Calibration) -> str:
    content = {
        "format": _FORMAT,
        "source": source.fingerprint(),
        "sizes": {name: getattr(plan.sizes, name) for name in SIZES},
        "speech_from": None if source.vocabulary is None else source.vocabulary.text_size,
        "dtype": str(plan.dtype).removeprefix("torch."),
        "options": asdict(plan.options),
        "calibration": calibration.digest() if plan.options.needs_calibration else None,
    }
    return json.dumps(content, indent=2) + "\n"


def _holds(folder: Path, plan: RankPlan, texts: Mapping[str, str], bias: Tensor | None) -> bool:
    """Return whether all files are there and undamaged, as far as this shows without reading the ranks' tensors."""
    try:
        found = read_bias(folder)
        same_texts = all((folder / name).read_text(encoding="utf-8") == text for name, text in texts.items())
        same_ranks = all(matches(rank_path(folder, rank), plan.specs(rank)) for rank in range(plan.options.world))
    except (CheckpointError, OSError, ValueError):
        return False
    if found is None or bias is None:
        return same_texts and same_ranks and found is bias
    return same_texts and same_ranks and found.dtype == bias.dtype and torch.equal(found, bias)


def _write_ranks(
    folder: Path, plan: RankPlan, source: Source, ranges: Mapping[str, Tensor], workers: int, progress: Progress
) -> int:
    with ExitStack() as open_files:
        files = [
            open_files.enter_context(closing(TensorFile(rank_path(folder, rank), plan.specs(rank))))
            for rank in range(plan.options.world)
        ]
        num_bytes = sum(file.num_bytes for file in files)
        free = shutil.disk_usage(folder).free
        if num_bytes > free:
            raise InvalidRequest(
                f"out: {num_bytes / 1e9:.3g} GB are needed, but only {free / 1e9:.3g} GB are free in "
                f"{folder.parent}; make room or choose another place"
            )
        blocks = [(table, block) for table in (EMBEDDING, HEAD) for block in plan.sizes.table_blocks]
        blocks.append((FINAL_NORM, slice(0, plan.sizes.hidden_size)))
        work = [partial(_write_layer, plan, source, ranges, files, index) for index in range(plan.sizes.num_layers)]
        work += [partial(_write_rows, plan, source, files, table, block) for table, block in blocks]
        with ThreadPoolExecutor(workers, "convert") as pool:
            running = [pool.submit(piece) for piece in work]
            try:
                for number, piece in enumerate(as_completed(running), start=1):
                    piece.result()
                    progress("converting", number, len(work))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return num_bytes


@dataclass(frozen=True)
class RankPlan:
    """Says which tensors the file of each rank has. dtype: of all tensors that are not quantised."""

    sizes: QwenSizes
    options: ConvertOptions
    dtype: torch.dtype

    @property
    def layers_per_stage(self) -> int:
        return self.sizes.num_layers // self.options.pp

    def ranks_of_layer(self, layer: int) -> range:
        first = layer // self.layers_per_stage * self.options.tp
        return range(first, first + self.options.tp)

    def ranks_of_table(self, name: str) -> range:
        """Return the ranks with this table of `TABLES`: the embedding is in the first stage, others are in the last."""
        return self.ranks_of_layer(0 if name == EMBEDDING else self.sizes.num_layers - 1)

    def layer_prefix(self, layer: int) -> str:
        """Return the prefix of a layer's tensor names. Each pipeline stage counts its own layers from 0."""
        return f"transformer.layers.{layer % self.layers_per_stage}."

    def rows_per_gpu(self, name: str) -> int | None:
        """Return a GPU's rows of a table that tensor-parallel GPUs split, else None. Zeros fill up the last GPU."""
        shared = name == HEAD or (name == EMBEDDING and self.options.parallel_embedding)
        return -(-self.sizes.vocab_size // self.options.tp) if shared else None

    def specs(self, rank: int) -> dict[str, Tensor]:
        """Find names, shapes and dtypes of all tensors in a rank's file by converting a layer without values."""
        weights = {name: blank(shape, torch.float32) for name, shape in self.sizes.layer_shapes.items()}
        ranges = {}
        for name in LINEARS:
            ranges[f"{name}.y"], ranges[f"{name}.x"] = weights[f"{name}.weight"][:, 0], weights[f"{name}.weight"][0]
        of_layer = convert_layer(weights, ranges, self.options, self.sizes, self.dtype)[rank % self.options.tp]
        found = {
            self.layer_prefix(layer) + name: tensor
            for layer in range(self.layers_per_stage)
            for name, tensor in of_layer.items()
        }
        shapes = self.sizes.shapes
        for table, name in TABLES.items():
            if rank in self.ranks_of_table(table):
                rows = self.rows_per_gpu(table) or shapes[table][0]
                found[name] = blank((rows, *shapes[table][1:]), self.dtype)
        return found


def _write_layer(
    plan: RankPlan, source: Source, ranges: Mapping[str, Tensor], files: Sequence[TensorFile], index: int
) -> None:
    prefix = f"model.layers.{index}."
    of_layer = {name.removeprefix(prefix): ranges[name].float() for name in ranges if name.startswith(prefix)}
    layer = {name: source.reader.read(prefix + name) for name in plan.sizes.layer_shapes}
    converted = convert_layer(layer, of_layer, plan.options, plan.sizes, plan.dtype)
    for rank, tensors in zip(plan.ranks_of_layer(index), converted, strict=True):
        for name, tensor in tensors.items():
            files[rank].write(plan.layer_prefix(index) + name, tensor)


def _write_rows(plan: RankPlan, source: Source, files: Sequence[TensorFile], table: str, block: slice) -> None:
    rows, per_gpu = cast(source.reader.read(table, block), plan.dtype, table), plan.rows_per_gpu(table)
    for tp_rank, rank in enumerate(plan.ranks_of_table(table)):
        first, end = (0, block.stop) if per_gpu is None else (tp_rank * per_gpu, (tp_rank + 1) * per_gpu)
        low, high = max(block.start, first), min(block.stop, end)
        if low < high:
            files[rank].write(TABLES[table], rows[low - block.start : high - block.start], row=low - first)
