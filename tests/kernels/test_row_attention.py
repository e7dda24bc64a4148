"""Hopper's attention kernel, whose threads a CPU runs one after another, computes what plain attention does."""

from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.emulation import compiled, runner
from vivavoce_kernels import cuda_kernel, row_attention
from vivavoce_kernels.flow_attention import AttentionTile
from vivavoce_kernels.layouts import KEY_TILE, PackedTables
from vivavoce_kernels.row_attention import HEAD, QUERIES, RowAttention, attention_for

HEADS, STEPS, STEP, SITES, SITE = 2, 2, 1, 3, 2
INNER, CUT = HEADS * HEAD, AttentionTile(QUERIES, 4, 3)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled("emulated_attention", tmp_path_factory.mktemp("kernels"))


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def batch(rows, padding):
    """rows: new frames of each row, and the end of keys of each  →  products with NaN in the padding, and tables."""
    torch.manual_seed(0)
    news = [len(ends) for ends in rows]
    starts = [sum(news[:number]) for number in range(len(news))]
    cuts = [
        (number, start + at, min(QUERIES, new - at))
        for number, (start, new) in enumerate(zip(starts, news, strict=True))
        for at in range(0, new, QUERIES)
    ]
    used = sum(news)
    cuts += [(0, used, padding), (0, 0, 0)]
    ends = int32([end for one in rows for end in one] + [0] * padding)
    unread = torch.empty(0, dtype=torch.int32)
    pages = torch.zeros(len(rows), 0, dtype=torch.int32)
    tables = PackedTables(unread, unread, unread, ends, int32(starts), int32(news), int32(cuts), pages)
    products = torch.randn(2 * (used + padding), 3 * INNER).half()
    products.view(2, -1, 3 * INNER)[:, used:] = torch.nan
    return products, tables


def attended(query, keys, values, ends):
    """[frames, inner] each, in float64."""
    q, k, v = (one.double().unflatten(1, (HEADS, HEAD)).transpose(0, 1) for one in (query, keys, values))
    scores = q @ k.transpose(1, 2) / HEAD**0.5
    hidden = torch.arange(k.shape[1]) >= torch.tensor(ends)[:, None]
    return (scores.masked_fill(hidden, -torch.inf).softmax(2) @ v).transpose(0, 1).flatten(1)


def check(got, expected, tables):
    used = sum(len(one) for one in expected[0])
    for copy, rows in enumerate(expected):
        torch.testing.assert_close(got.view(2, -1, INNER)[copy, :used].double(), torch.cat(rows), rtol=0, atol=2e-3)
    assert not got.view(2, -1, INNER)[:, used:].any()


def test_a_launch_asks_for_what_the_kernel_needs(library):
    assert (row_attention.SOURCE.threads, row_attention.SOURCE.shared) == (library.threads(), library.shared())


@pytest.mark.parametrize(
    "rows",
    [
        ([1],),
        ([64] * 64, [65] * 65),
        ([50] * 50 + [100] * 50 + [130] * 30, [7] * 7),
    ],
    ids=["one frame", "full tiles", "blocks"],
)
def test_whole_rows_attend_to_their_own_keys(library, rows):
    products, tables = batch(rows, padding=5)
    attention = RowAttention(runner(library.run_attention), HEADS)
    got = attention(products, None, tables, int32([0]), 0, CUT)
    expected = [
        [
            attended(*one.chunk(3, dim=1), ends)
            for one, ends in zip(copy.split([*map(len, rows), 5]), rows, strict=False)
        ]
        for copy in products.view(2, -1, 3 * INNER)
    ]
    check(got, expected, tables)


def test_keys_come_from_pages_and_nothing_behind_a_row_counts(library):
    sizes, news = (70, 192, 12), (30, 64, 12)
    rows = ([50] * 10 + [70] * 20, [192] * 64, [12] * 12)
    products, tables = batch(rows, padding=3)
    free = iter(torch.randperm(9).add(1).tolist())
    keys = torch.full((10, STEPS, SITES, 2, KEY_TILE, 2 * INNER), torch.nan, dtype=torch.float16)
    pages, known = torch.zeros(len(sizes), 3, dtype=torch.int32), []
    for number, size in enumerate(sizes):
        values = torch.randn(2, size, 2 * INNER).half()
        for page, part in enumerate(values.split(KEY_TILE, dim=1)):
            pages[number, page] = next(free)
            keys[pages[number, page], STEP, SITE, :, : part.shape[1]] = part
        known.append(values)
    attention = RowAttention(runner(library.run_attention), HEADS)
    got = attention(products, keys, tables._replace(pages=pages), int32([STEP]), SITE, CUT)
    queries = products.view(2, -1, 3 * INNER)[..., :INNER]
    expected = [
        [
            attended(query, *known[number][copy].chunk(2, dim=1), rows[number])
            for number, query in enumerate(queries[copy, : sum(news)].split(news))
        ]
        for copy in range(2)
    ]
    check(got, expected, tables)


def growing():
    """A row whose later keys have far larger scores  →  products and tables."""
    products, tables = batch(([200] * 200,), padding=0)
    keys = products.view(2, 200, 3, INNER)[:, :, 1]
    keys *= torch.linspace(0.2, 12, 200)[None, :, None].half()
    return products, tables


def test_scores_that_grow_are_scaled_down(library):
    products, tables = growing()
    attention = RowAttention(runner(library.run_attention), HEADS)
    got = attention(products, None, tables, int32([0]), 0, CUT)
    for copy in range(2):
        one = products.view(2, 200, 3 * INNER)[copy]
        torch.testing.assert_close(
            got.view(2, 200, INNER)[copy].double(), attended(*one.chunk(3, dim=1), [200] * 200), rtol=0, atol=4e-3
        )


def test_elsewhere_the_general_kernel_serves(monkeypatch):
    weight = torch.zeros(1, dtype=torch.float16)
    assert not isinstance(attention_for(weight, HEADS, HEAD), RowAttention)
    monkeypatch.setattr(row_attention, "takes_kernels", lambda weight: True)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)

    def refused(*_):
        raise RuntimeError("no NVRTC")

    def broken(*_):
        return refused

    for made in (refused, broken):
        monkeypatch.setattr(cuda_kernel, "CudaKernel", made)
        with pytest.warns(RuntimeWarning, match="long rows take longer.* no NVRTC"):
            assert not isinstance(attention_for(weight, HEADS, HEAD), RowAttention)


def test_the_kernel_is_tried_before_it_serves(library, monkeypatch):
    run, tried = runner(library.run_attention), []

    def kernel(*_):
        return lambda programs, arguments: (tried.append(programs), run(programs, arguments))

    monkeypatch.setattr(row_attention, "takes_kernels", lambda weight: True)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(cuda_kernel, "CudaKernel", kernel)
    weight = torch.zeros(1, dtype=torch.float16)
    assert isinstance(attention_for(weight, HEADS, HEAD), RowAttention)
    assert tried == [2 * HEADS]
    assert not isinstance(attention_for(weight, HEADS, 32), RowAttention)
