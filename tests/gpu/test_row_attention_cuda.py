"""Hopper's attention kernel equals the general one, and a query's bits depend on its own keys alone."""

import pytest
import torch

from tests.kernels.test_row_attention import CUT, HEADS, INNER, SITE, SITES, STEP, STEPS, batch, growing, int32
from vivavoce_kernels.cuda_kernel import takes_kernels
from vivavoce_kernels.flow_attention import attend
from vivavoce_kernels.layouts import KEY_TILE, PackedTables
from vivavoce_kernels.row_attention import HEAD, RowAttention, attention_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
ROWS = ([674] * 674, [50] * 50 + [100] * 50 + [130] * 30, [1], [65] * 65)


@pytest.fixture(scope="module")
def attention():
    weight = torch.zeros(1, device=CUDA, dtype=torch.float16)
    if not takes_kernels(weight):
        pytest.skip("not a Hopper GPU")
    made = attention_for(weight, HEADS, HEAD)
    assert isinstance(made, RowAttention)
    return made


def on_device(rows, padding=3):
    products, tables = batch(rows, padding)
    return products.to(CUDA), PackedTables(*(table.to(CUDA) for table in tables))


def test_whole_rows(attention):
    products, tables = on_device(ROWS)
    step = int32([0]).to(CUDA)
    used = sum(map(len, ROWS))
    whole = attention(products, None, tables, step, 0, CUT).view(2, -1, INNER)
    assert not whole[:, used:].any()
    got = whole[:, :used]
    expected = attend(products, None, tables, step, 0, HEADS, CUT).view(2, -1, INNER)[:, :used]
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-3)
    start = 0
    for row in ROWS:
        alone, own = on_device((row,))
        alone = products.view(2, -1, 3 * INNER)[:, start : start + len(row)].flatten(0, 1).contiguous()
        own = own._replace(tiles=own.tiles[:-2].contiguous(), ends=own.ends[: len(row)].contiguous())
        assert torch.equal(
            attention(alone, None, own, step, 0, CUT).view(2, -1, INNER), got[:, start : start + len(row)]
        )
        start += len(row)


def test_pages_give_the_bits_of_whole_rows(attention):
    size = 300
    products, tables = on_device(([size] * size,), padding=0)
    whole = attention(products, None, tables, int32([0]).to(CUDA), 0, CUT).view(2, size, INNER)
    count = -(-size // KEY_TILE)
    keys = torch.full((count + 1, STEPS, SITES, 2, KEY_TILE, 2 * INNER), torch.nan, dtype=torch.float16, device=CUDA)
    pages = torch.arange(count, 0, -1, dtype=torch.int32, device=CUDA)[None].contiguous()
    for page, part in zip(pages[0].tolist(), products.view(2, size, 3 * INNER).split(KEY_TILE, dim=1), strict=True):
        keys[page, STEP, SITE, :, : part.shape[1]] = part[..., INNER:]
    step = int32([STEP]).to(CUDA)
    paged = attention(products, keys, tables._replace(pages=pages), step, SITE, CUT)
    assert torch.equal(paged.view(2, size, INNER), whole)


def test_scores_that_grow(attention):
    products, tables = growing()
    products, tables = products.to(CUDA), PackedTables(*(table.to(CUDA) for table in tables))
    step = int32([0]).to(CUDA)
    got = attention(products, None, tables, step, 0, CUT)
    torch.testing.assert_close(got, attend(products, None, tables, step, 0, HEADS, CUT), rtol=0, atol=4e-3)


def test_a_recorded_launch_reads_what_is_in_the_tables_when_it_runs(attention):
    size, heads = 130, 8
    inner, count = heads * HEAD, 3
    many = attention_for(torch.zeros(1, device=CUDA, dtype=torch.float16), heads, HEAD)
    _, tables = on_device(([50] * 50 + [100] * 50 + [size] * 30,), padding=0)
    tables = tables._replace(pages=int32([[1, 2, 3]]).to(CUDA))
    products = torch.randn(2 * size, 3 * inner, device=CUDA, dtype=torch.float16)
    keys = torch.randn(count + 1, STEPS, SITES, 2, KEY_TILE, 2 * inner, device=CUDA, dtype=torch.float16)
    step = int32([0]).to(CUDA)
    many(products, keys, tables, step, SITE, CUT)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        got = many(products, keys, tables, step, SITE, CUT)
    step.fill_(STEP)
    tables.pages.copy_(int32([[3, 1, 2]]))
    products.normal_()
    recorded.replay()
    torch.testing.assert_close(got, attend(products, keys, tables, step, SITE, heads, CUT), rtol=0, atol=2e-3)
