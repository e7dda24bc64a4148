"""Packed batches of the token encoder: pasts in pages, company, and tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.fast_flow import coarse_cuts, products_in_order, quick_interpreter
from vivavoce.engine.device import TOKEN_SIZES
from vivavoce.engine.flow_stage.packed import PackedEncoding
from vivavoce.engine.flow_stage.packed_tables import EncoderLayout
from vivavoce.engine.flow_stage.planning import SINK, AttentionSpan, Block, FlowRow, PagePool, RowState, block_ends
from vivavoce.models.flow.model import Flow
from vivavoce.models.layers import keys_before

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter"),
]


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter(), coarse_cuts():
        yield


@pytest.fixture(scope="module")
def small(models):
    """Models with an encoder of two blocks and one, and biases as large as what they are added to."""
    torch.manual_seed(0)
    given = models.config.flow
    encoder = replace(given.encoder, hidden_size=32, num_heads=2, feed_forward_size=32, num_blocks=2, num_up_blocks=1)
    config = replace(given, num_tokens=50, encoder=encoder)
    flow = Flow(config).eval().requires_grad_(False)
    for name, parameter in flow.encoder.named_parameters():
        scale = 0.5 if "bias" in name else parameter[0].numel() ** -0.5
        parameter.copy_(torch.randn_like(parameter) * scale + ("norm" in name and "weight" in name))
    flow.lay_out()
    return replace(models, config=replace(models.config, flow=config), flow=flow)


def pool_of(models):
    """Pages of the encoder, spoilt."""
    size = sum(buffer.page_bytes for buffer in PagePool(models, 1 << 30, kernels=True).buffers)
    pool = PagePool(models, 13 * size, kernels=True)
    for buffer in pool.buffers[:2]:
        buffer.keys[:], buffer.tails[1:] = float("nan"), float("nan")
    return pool


class Voice:
    """A sequence of tokens whose rows follow one another."""

    def __init__(self, pool, seed, length=120):
        self.pool, self.state, self.blocks = pool, None, ()
        self.tokens = np.random.default_rng(seed).integers(0, 50, length)

    def row(self, *bounds, ahead=3, forget=False):
        """Blocks that end at `bounds`; forget: compute all of it again, and leave no state."""
        self.blocks += tuple(Block(bound, bounds[-1] + ahead) for bound in bounds)
        end, before = self.blocks[-1].end, None if forget else self.state
        past, after = before.tokens if before else 0, None
        if not forget:
            pages = before.pages if before else ()
            fresh = self.pool.acquire(self.pool.pages_for(end) - len(pages))
            for buffer in self.pool.buffers[:2]:
                buffer.keys[list(fresh)] = float("nan")
            pages += fresh
            after = RowState(end, pages, before.slot if before else pages[0])
        ends, known = block_ends(self.blocks, past, end)
        frames = (2 * ends).repeat(2)
        span = AttentionSpan(ends, frames, frames, known)
        row = FlowRow(None, past=past, end=end, blocks=self.blocks, before=before, after=after)
        row.tokens, row.span = self.tokens[past : end + ahead], span
        return row


def whole(models, voice, row):
    """mu of a voice's row from the start of the sequence, of which the row's own frames are given, [frames, bins]."""
    flow, tokens = models.flow, torch.as_tensor(voice.tokens[: row.past + len(row.tokens)])
    ends, known = block_ends(voice.blocks, 0, row.end)
    masks = tuple(keys_before(torch.as_tensor(one)[None], len(one)) for one in (ends, (2 * ends).repeat(2)))
    embedded, lengths, heard = flow.token_embedding(tokens)[None], torch.tensor([len(tokens)]), torch.as_tensor(known)
    return flow.encoder.encode(embedded, lengths, len(ends), masks, lookahead_ends=heard[None])[0, 2 * row.past :]


def check(made, expected):
    torch.testing.assert_close(made, expected, atol=3e-5 * float(expected.abs().max()), rtol=0)


def take(encoding, voices, rows):
    """Encode and commit a batch; the mu of each row."""
    encoded = encoding.encode(rows)
    encoded.commit()
    for voice, row in zip(voices, rows, strict=True):
        voice.state = row.after
    return [part.clone() for part in encoded.mu.split([2 * row.new for row in rows])]


@pytest.mark.parametrize("invariant", [False, True])
def test_rows_continue_their_pasts(small, invariant):
    """Over the ends of pages, by one token, beside rows that begin, and at the end without lookahead."""
    pool = pool_of(small)
    encoding = PackedEncoding(small, pool, TOKEN_SIZES, invariant=invariant)
    one, two, three = (Voice(pool, seed) for seed in range(3))
    for batch in (
        [(one, (20, 38), 3), (two, (31,), 3)],
        [(two, (32,), 3), (three, (5,), 3), (one, (50, 70), 0)],
        [(three, (6,), 2), (two, (33, 67), 1)],
        [(one, (73,), 1), (three, (17,), 3)],
    ):
        rows = [voice.row(*bounds, ahead=ahead) for voice, bounds, ahead in batch]
        voices = [voice for voice, *_ in batch]
        for made, voice, row in zip(take(encoding, voices, rows), voices, rows, strict=True):
            check(made, whole(small, voice, row))
    held = [page for voice in (one, two, three) for page in voice.state.pages]
    for buffer, rate in zip(pool.buffers[:2], (1, 2), strict=True):
        used = sum(voice.state.tokens for voice in (one, two, three)) * rate
        written = buffer.keys.isfinite().all(-1)[:, 0, :, 0]
        assert written[held].sum() == used * buffer.sites
        assert written.sum() == used * buffer.sites
        assert not buffer.tails[SINK].any()


def test_invariant_rows_are_equal_to_the_bit(small):
    """Alone and in company, with a past in pages and computed again."""
    with products_in_order():
        pool = pool_of(small)
        encoding = PackedEncoding(small, pool, TOKEN_SIZES, invariant=True)
        alone, voice, other = Voice(pool, 1), Voice(pool, 1), Voice(pool, 2)
        for bounds, beside in (((20, 39), 7), ((45,), 44)):
            (expected,) = take(encoding, [alone], [alone.row(*bounds)])
            rows = [other.row(beside), voice.row(*bounds)]
            _, made = take(encoding, [other, voice], rows)
            assert torch.equal(made, expected)
        again = encoding.encode([alone.row(forget=True)]).mu
        assert torch.equal(again[-len(expected) :], expected)


def test_tables_of_a_batch(small):
    pool = pool_of(small)
    one, two = Voice(pool, 1), Voice(pool, 2)
    first = two.row(40)
    two.state = first.after
    rows = [one.row(5, ahead=1), two.row(50)]
    layout = EncoderLayout(TOKEN_SIZES.bucket(15, 2, True), 16, 3, 2)
    tables = layout.tables(torch.from_numpy(layout.numbers(rows)))
    assert all(part.data_ptr() % 16 == 0 for part in tables)
    assert tables.row.tolist() == [0] * 5 + [1] * 10 + [0] * 17
    assert tables.local.tolist() == [*range(5), *range(10), *[-1] * 17]
    assert tables.ids[4].tolist() == [one.tokens[4], one.tokens[5], -1, -1]
    assert tables.ids[5].tolist() == two.tokens[40:44].tolist()
    assert (tables.ids[15:] == -1).all()
    assert tables.ends.tolist() == [5] * 5 + [50] * 10 + [0] * 17
    assert tables.frame_ends.tolist() == [10] * 10 + [100] * 20 + [0] * 34
    assert (tables.first[:3].tolist(), tables.length[:3].tolist(), tables.past[:3].tolist()) == (
        [0, 5, 0],
        [5, 10, 0],
        [0, 40, 0],
    )
    assert tables.slots.tolist() == [SINK, first.after.slot, *[SINK] * 6]
    assert tables.tiles.tolist()[:4] == [[0, 0, 5], [1, 5, 10], [0, 15, 16], [0, 31, 1]]
    assert tables.frame_tiles.tolist()[:4] == [[0, 0, 10], [1, 10, 16], [1, 26, 4], [0, 30, 16]]
    assert tables.pages[1, :2].tolist() == list(rows[1].after.pages)
