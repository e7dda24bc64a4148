"""Which checkpoints can be, which cannot, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vivavoce.errors import InvalidRequest
from vivavoce.export.trtllm.config_json import build_command
from vivavoce.export.trtllm.options import ConvertOptions, chosen_dtype
from vivavoce.export.trtllm.sizes import QwenSizes

RELEASE = QwenSizes(896, 4864, 24, 14, 2, 158_336, 1e-6, 1e6, 32768, tied=False)
"""CosyVoice2-0.5B."""


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"dtype": "int8"}, "dtype: 'int8' is unknown; use auto or one of float16, bfloat16, float32"),
        ({"tp": 0}, "tp-size: 0 is below 1; give the number of GPUs"),
        ({"pp": -1}, "pp-size: -1 is below 1; give the number of GPUs"),
        (
            {"cp": 2},
            "cp-size: 2 cannot be: this model's attention has no form that is split along the text; leave it at 1, "
            "use --tp-size or --pp-size",
        ),
        ({"weight_only": "int3"}, "weight-only-precision: 'int3' is unknown; use int8 or int4"),
        (
            {"weight_only": "int8", "prequantize": "sm70"},
            "prequantize: 'sm70' is unknown; use sm80 or sm90",
        ),
        (
            {"prequantize": "sm80"},
            "prequantize: there is nothing to quantise; add --use-weight-only, or leave it out",
        ),
        (
            {"per_token": True},
            "per-token, per-channel: belong to --smoothquant; add it, or leave them out",
        ),
        ({"smoothquant": 1.5}, "smoothquant: 1.5 is not between 0 and 1; 0.5 is usual"),
        (
            {"smoothquant": 0.5, "weight_only": "int4"},
            "smoothquant: excludes --use-weight-only, both quantise the weights; choose one",
        ),
    ],
)
def test_wishes_that_contradict_are_refused(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ConvertOptions(**wishes)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"tp": 4}, "tp-size: 4 does not divide the 14 attention heads; use 1 or 2"),
        (
            {"tp": 7},
            "tp-size: 7 neither divides the 2 key-value heads nor is a multiple of them; use 1 or 2",
        ),
        ({"tp": 14}, "tp-size: 14 does not divide the 4864 channels of the MLP; use 1 or 2"),
        ({"pp": 5}, "pp-size: 5 does not divide the 24 layers; use 1, 2, 3, 4, 6, 8, 12, 24"),
    ],
)
def test_splits_that_do_not_fit_the_release_are_refused(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ConvertOptions(**wishes).check_fits(RELEASE)
    assert str(refused.value) == message


def test_splits_that_fit_the_release() -> None:
    for tp in (1, 2):
        for pp in (1, 2, 24):
            ConvertOptions(tp=tp, pp=pp, weight_only="int4", prequantize="sm80").check_fits(RELEASE)
            ConvertOptions(tp=tp, pp=pp, smoothquant=0.5, int8_kv_cache=True).check_fits(RELEASE)


def test_matrices_that_the_kernels_cannot_read_are_refused() -> None:
    narrow = QwenSizes(256, 704, 6, 4, 2, 7168, 1e-6, 1e4, 32768, tied=False)
    ConvertOptions(tp=1, weight_only="int8").check_fits(narrow)
    with pytest.raises(InvalidRequest, match="multiples of 64 channels, and MLP has 352 on each GPU at tp-size 2"):
        ConvertOptions(tp=2, weight_only="int8").check_fits(narrow)


@pytest.mark.parametrize(
    ("wanted", "stored", "chosen"),
    [
        ("auto", torch.bfloat16, torch.bfloat16),
        ("auto", torch.float16, torch.float16),
        ("auto", torch.float32, torch.float16),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("float32", torch.bfloat16, torch.float32),
    ],
)
def test_the_dtype(wanted: str, stored: torch.dtype, chosen: torch.dtype) -> None:
    assert chosen_dtype(ConvertOptions(dtype=wanted), stored) == chosen


def test_the_line_that_builds_an_engine() -> None:
    assert " ".join(build_command("weights", "engine", torch.bfloat16)) == (
        "trtllm-build --checkpoint_dir weights --output_dir engine --max_batch_size 16 --max_num_tokens 32768 "
        "--gemm_plugin bfloat16"
    )
