"""What a checkpoint may be like, and which wishes cannot be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vivavoce.errors import InvalidRequest
from vivavoce.export.trtllm.sizes import QwenSizes

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
AUTO = "auto"
BITS = {"int8": 8, "int4": 4}
GPU_LAYOUTS = ("sm80", "sm90")
"""sm80: GPUs of compute capability 7.5 to 8.9; sm90: Hopper, as TensorRT-LLM 0.17 alone reads it."""
WEIGHT_ONLY_MULTIPLE = 64
"""TensorRT-LLM's kernels for int8 and int4 weights take matrices of whole tiles only."""


@dataclass(frozen=True)
class ConvertOptions:
    """One conversion. Raises `InvalidRequest` if a value is out of its range or two contradict each other."""

    dtype: str = AUTO
    """float16, bfloat16, float32, or auto: the source's own, float16 in place of float32."""
    tp: int = 1
    """GPUs that share every layer."""
    pp: int = 1
    """GPUs that take turns, each with a share of the layers."""
    cp: int = 1
    weight_only: str | None = None
    """int8 or int4: the large matrices are quantised, by whoever builds the engine unless `prequantize` is set."""
    prequantize: str | None = None
    """One of `GPU_LAYOUTS`: the matrices are quantised here, with their bytes in that generation's order."""
    int8_kv_cache: bool = False
    parallel_embedding: bool = False
    """The embedding is split over the GPUs that share a layer, along the vocabulary."""
    smoothquant: float | None = None
    """The share of the inputs' range that moves into the weights (arXiv:2211.10438, its alpha): int8 products."""
    per_token: bool = False
    """Inputs are scaled row by row while the engine runs; otherwise by what calibration has seen."""
    per_channel: bool = False
    """Weights have a scale for each output; otherwise one for a matrix."""

    def __post_init__(self) -> None:
        if self.dtype != AUTO and self.dtype not in DTYPES:
            raise InvalidRequest(f"dtype: {self.dtype!r} is unknown; use {AUTO} or one of {', '.join(DTYPES)}")
        for name, value in (("tp-size", self.tp), ("pp-size", self.pp), ("cp-size", self.cp)):
            if value < 1:
                raise InvalidRequest(f"{name}: {value} is below 1; give the number of GPUs")
        if self.cp > 1:
            raise InvalidRequest(
                f"cp-size: {self.cp} cannot be: this model's attention has no form that is split along the text; "
                "leave it at 1, use --tp-size or --pp-size"
            )
        self._check_weight_only()
        self._check_smoothquant()

    @property
    def world(self) -> int:
        """GPUs, hence files, in all."""
        return self.tp * self.pp

    @property
    def needs_calibration(self) -> bool:
        """Whether the ranges of activations have to be known."""
        return self.smoothquant is not None or self.int8_kv_cache

    def _check_weight_only(self) -> None:
        if self.weight_only is not None and self.weight_only not in BITS:
            raise InvalidRequest(f"weight-only-precision: {self.weight_only!r} is unknown; use {' or '.join(BITS)}")
        if self.prequantize is None:
            return
        if self.prequantize not in GPU_LAYOUTS:
            raise InvalidRequest(f"prequantize: {self.prequantize!r} is unknown; use {' or '.join(GPU_LAYOUTS)}")
        if self.weight_only is None:
            raise InvalidRequest("prequantize: there is nothing to quantise; add --use-weight-only, or leave it out")

    def _check_smoothquant(self) -> None:
        if self.smoothquant is None:
            if self.per_token or self.per_channel:
                raise InvalidRequest("per-token, per-channel: belong to --smoothquant; add it, or leave them out")
            return
        if not 0 < self.smoothquant < 1:
            raise InvalidRequest(f"smoothquant: {self.smoothquant:g} is not between 0 and 1; 0.5 is usual")
        if self.weight_only is not None:
            raise InvalidRequest("smoothquant: excludes --use-weight-only, both quantise the weights; choose one")

    def check_fits(self, sizes: QwenSizes) -> None:
        """Refuse a split that this model cannot be cut into.

        Raises:
            InvalidRequest: the message has the reason and the splits that can be.
        """
        if reason := _why_not_split(self.tp, sizes):
            fitting = [str(tp) for tp in range(1, sizes.num_heads + 1) if _why_not_split(tp, sizes) is None]
            raise InvalidRequest(f"tp-size: {self.tp} {reason}; use {' or '.join(fitting)}")
        if sizes.num_layers % self.pp:
            fitting = [str(pp) for pp in range(1, sizes.num_layers + 1) if sizes.num_layers % pp == 0]
            raise InvalidRequest(
                f"pp-size: {self.pp} does not divide the {sizes.num_layers} layers; use {', '.join(fitting)}"
            )
        if self.weight_only is not None and (reason := _why_not_weight_only(self.tp, sizes)):
            raise InvalidRequest(
                f"use-weight-only: {reason}; leave it out, or choose another --tp-size where that is the cause"
            )


def _why_not_split(tp: int, sizes: QwenSizes) -> str | None:
    if sizes.num_heads % tp:
        return f"does not divide the {sizes.num_heads} attention heads"
    if sizes.num_kv_heads % tp and tp % sizes.num_kv_heads:
        return f"neither divides the {sizes.num_kv_heads} key-value heads nor is a multiple of them"
    if sizes.intermediate_size % tp:
        return f"does not divide the {sizes.intermediate_size} channels of the MLP"
    return None


def _why_not_weight_only(tp: int, sizes: QwenSizes) -> str | None:
    kv_heads = max(sizes.num_kv_heads // tp, 1)
    widths = {
        "qkv": (sizes.num_heads // tp + 2 * kv_heads) * sizes.head_size,
        "attention": sizes.hidden_size // tp,
        "hidden_size": sizes.hidden_size,
        "MLP": sizes.intermediate_size // tp,
    }
    for name, width in widths.items():
        if width % WEIGHT_ONLY_MULTIPLE:
            return (
                f"the kernels take multiples of {WEIGHT_ONLY_MULTIPLE} channels, and {name} has {width} on each GPU "
                f"at tp-size {tp}"
            )
    return None


def chosen_dtype(options: ConvertOptions, source: torch.dtype) -> torch.dtype:
    """The dtype of everything that is not quantised; source: what the model is stored in."""
    if options.dtype != AUTO:
        return DTYPES[options.dtype]
    return source if source in (torch.float16, torch.bfloat16) else torch.float16
