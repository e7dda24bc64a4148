"""Times the flow's attention on Hopper: the general kernel and `RowAttention`, launches recorded ten by ten.

python -m benchmarks.gpu.attention --out benchmarks/results/gpu/attention.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.model import device_ms, origin
from vivavoce_bench.measure import save_json
from vivavoce_kernels.flow_attention import AttentionTile, attend
from vivavoce_kernels.layouts import KEY_TILE, PackedTables
from vivavoce_kernels.row_attention import HEAD, QUERIES, RowAttention, attention_for

CUT, TOGETHER, REPEATS = AttentionTile(QUERIES, 4, 3), 10, 9
CUDA = torch.device("cuda")


class Case(NamedTuple):
    """past: frames before, whose keys are in pages; 0: the rows have no pages. block: frames that attend to keys up to
    their own last one; 0: to all keys.
    """

    rows: int
    frames: int
    past: int = 0
    heads: int = 8
    block: int = 0


CASES = (
    Case(32, 674),
    Case(64, 200, block=50),
    Case(32, 674, heads=16),
    Case(64, 100, 374),
    Case(16, 100, 374),
    Case(1, 30, 174),
)


def int32(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=CUDA)


def tables_of(case: Case) -> PackedTables:
    rows, frames, size = case.rows, case.frames, case.past + case.frames
    tiles = [
        (row, row * frames + at, min(QUERIES, frames - at)) for row in range(rows) for at in range(0, frames, QUERIES)
    ]
    pages = -(-size // KEY_TILE) if case.past else 0
    local = torch.arange(frames).repeat(rows)
    ends = (local // case.block + 1) * case.block if case.block else torch.full((rows * frames,), size)
    return PackedTables(
        int32(torch.arange(rows).repeat_interleave(frames)), int32(local), int32(local + case.past),
        int32(ends), int32(torch.arange(rows) * frames), int32([frames] * rows), int32(tiles),
        int32(torch.randperm(rows * pages).view(rows, pages)),
    )  # fmt: skip


def microseconds(launch: Callable[[], Tensor]) -> float:
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TOGETHER):
            launch()
    return round(device_ms(graph.replay, CUDA, REPEATS) / TOGETHER * 1e3, 1)


def measure(case: Case) -> dict[str, float]:
    tables, step, inner = tables_of(case), int32([0]), case.heads * HEAD
    made: dict[str, Any] = {"device": CUDA, "dtype": torch.float16}
    products = torch.randn(2 * case.rows * case.frames, 3 * inner, **made)
    keys = torch.randn(tables.pages.numel(), 1, 1, 2, KEY_TILE, 2 * inner, **made) if case.past else None
    fast = attention_for(products, case.heads, HEAD)
    assert isinstance(fast, RowAttention), "needs a Hopper GPU"
    general = microseconds(lambda: attend(products, keys, tables, step, 0, case.heads, CUT))
    return {"general_us": general, "us": microseconds(lambda: fast(products, keys, tables, step, 0, CUT))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    figures = origin("benchmarks.gpu.attention", CUDA)
    for case in CASES:
        name = f"{case.rows}x{case.frames}_past{case.past}_heads{case.heads}_block{case.block}"
        figures[name] = measure(case)
        print(name, figures[name], flush=True)
    save_json(figures, options.out)


if __name__ == "__main__":
    main()
