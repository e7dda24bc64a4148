"""Packed batches of the token encoder: pasts in pages, company, tables, and recordings."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.fast_flow import coarse_cuts, products_in_order, quick_interpreter
from vivavoce.engine.flow_stage import encoder_tables
from vivavoce.engine.flow_stage.blocks import Block, at_rate, grid_ends, of_blocks, whole_ends
from vivavoce.engine.flow_stage.encoder_tables import TOKEN_BUCKETS, EncoderBucket, EncoderShape
from vivavoce.engine.flow_stage.packed_encoding import PackedEncoding
from vivavoce.engine.flow_stage.planning import Row, Sight
from vivavoce.engine.flow_stage.pool import SINK, PagePool
from vivavoce.engine.flow_stage.state import RowState
from vivavoce.models.flow.model import Flow
from vivavoce.models.layers.masks import keys_before

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter")
PAGES = 12


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


def pool_of(models, pages=PAGES):
    """Pages of the encoder, spoilt."""
    size = sum(shelf.page_bytes for shelf in PagePool(models, 1 << 30, kernels=True).shelves) if pages else 0
    pool = PagePool(models, (pages + 1) * size, kernels=True)
    assert pool.total == pages
    for shelf in pool.shelves[:2]:
        shelf.keys[:], shelf.tails[1:] = float("nan"), float("nan")
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
            for shelf in self.pool.shelves[:2]:
                shelf.keys[list(fresh)] = float("nan")
            pages += fresh
            after = RowState(end, pages, before.slot if before else pages[0])
        ends, known = of_blocks(self.blocks, past, end)
        frames = at_rate(ends, 2)
        sight = Sight(ends, frames, frames, known)
        return Row(None, self.tokens[past : end + ahead], past, end, self.blocks, sight, before, after)


def expected_of(models, tokens, ends, frame_ends, known):
    """mu of a whole row, [frames, bins]."""
    flow, tokens = models.flow, torch.as_tensor(tokens)
    masks = tuple(keys_before(torch.as_tensor(one)[None], len(one)) for one in (ends, frame_ends))
    embedded, lengths = flow.token_embedding(tokens)[None], torch.tensor([len(tokens)])
    return flow.encoder.encode(embedded, lengths, len(ends), masks, lookahead_ends=torch.as_tensor(known)[None])[0]


def whole(models, voice, row):
    """mu of a voice's row from the start of the sequence, of which the row's own frames are given."""
    ends, known = of_blocks(voice.blocks, 0, row.end)
    tokens = voice.tokens[: row.past + len(row.tokens)]
    return expected_of(models, tokens, ends, at_rate(ends, 2), known)[2 * row.past :]


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
@torch.inference_mode()
def test_rows_continue_their_pasts(small, invariant):
    """Over the ends of pages, by one token, beside rows that begin, and at the end without lookahead."""
    pool = pool_of(small)
    encoding = PackedEncoding(small, pool, TOKEN_BUCKETS, invariant=invariant)
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
    for shelf, rate in zip(pool.shelves[:2], (1, 2), strict=True):
        used = sum(voice.state.tokens for voice in (one, two, three)) * rate
        written = shelf.keys.isfinite().all(-1)[:, 0, :, 0]
        assert written[held].sum() == used * shelf.sites
        assert written.sum() == used * shelf.sites
        assert not shelf.tails[SINK].any()


@torch.inference_mode()
def test_rows_without_state(small):
    encoding = PackedEncoding(small, pool_of(small, 0), TOKEN_BUCKETS, invariant=False)
    tokens = Voice(None, 5).tokens
    sights = [
        Sight(whole_ends(0, 33), whole_ends(0, 66), whole_ends(0, 66), np.full(33, 35)),
        Sight(grid_ends(0, 30, 25), grid_ends(0, 60, 50), grid_ends(0, 60, 50), np.full(30, 32)),
    ]
    rows = [Row(None, tokens[: len(one.tokens) + 2], 0, len(one.tokens), (), one) for one in sights]
    encoded = encoding.encode(rows)
    expected = [
        expected_of(small, row.tokens, row.sight.tokens, row.sight.up_frames, row.sight.lookahead_ends) for row in rows
    ]
    check(encoded.mu, torch.cat(expected))
    assert encoded.slots is None
    encoded.commit()


@torch.inference_mode()
def test_an_abandoned_batch_leaves_tails_as_they_were(small):
    pool = pool_of(small)
    encoding, voice = PackedEncoding(small, pool, TOKEN_BUCKETS, invariant=False), Voice(pool, 1)
    take(encoding, [voice], [voice.row(20)])
    before = [shelf.tails.clone() for shelf in pool.shelves[:2]]
    row = voice.row(30)
    first = encoding.encode([row]).mu.clone()
    for shelf, tails in zip(pool.shelves, before, strict=False):
        torch.testing.assert_close(shelf.tails, tails, equal_nan=True, rtol=0, atol=0)
    (again,) = take(encoding, [voice], [row])
    assert torch.equal(again, first)
    check(again, whole(small, voice, row))
    assert all(
        not torch.equal(shelf.tails[row.after.slot], tails[row.after.slot])
        for shelf, tails in zip(pool.shelves, before, strict=False)
    )


@torch.inference_mode()
def test_tails_are_a_batch_s_own_until_they_are_committed(small):
    pool = pool_of(small)
    encoding, voices = (
        PackedEncoding(small, pool, TOKEN_BUCKETS, invariant=False),
        [Voice(pool, seed) for seed in (1, 2)],
    )
    batches = []
    for voice in voices:
        row = voice.row(12)
        batches.append(encoding.encode([row]))
        voice.state = row.after
    for batch in batches:
        batch.commit()
    rows = [voice.row(24) for voice in voices]
    for made, voice, row in zip(take(encoding, voices, rows), voices, rows, strict=True):
        check(made, whole(small, voice, row))


@torch.inference_mode()
def test_invariant_rows_are_equal_to_the_bit(small):
    """Alone and in company, with a past in pages and computed again."""
    with products_in_order():
        pool = pool_of(small)
        encoding = PackedEncoding(small, pool, TOKEN_BUCKETS, invariant=True)
        alone, voice, other = Voice(pool, 1), Voice(pool, 1), Voice(pool, 2)
        for bounds, beside in (((20, 39), 7), ((45,), 44)):
            (expected,) = take(encoding, [alone], [alone.row(*bounds)])
            rows = [other.row(beside), voice.row(*bounds)]
            _, made = take(encoding, [other, voice], rows)
            assert torch.equal(made, expected)
        again = encoding.encode([alone.row(forget=True)]).mu
        assert torch.equal(again[-len(expected) :], expected)


@torch.inference_mode()
def test_common_sizes_are_recorded_once_and_larger_ones_never(small, monkeypatch):
    monkeypatch.setattr(encoder_tables, "TOKEN_BUCKETS", (16, 32, 64))
    pool = pool_of(small)
    encoding, voice = PackedEncoding(small, pool, (16, 32), invariant=False), Voice(pool, 1)
    encoding.prepare(None)
    assert encoding._graphs.captured == 4
    take(encoding, [voice], [voice.row(10)])
    row = voice.row(50)
    (made,) = take(encoding, [voice], [row])
    check(made, whole(small, voice, row))
    assert encoding._graphs.captured == 4
    without = PackedEncoding(small, pool_of(small, 0), (16, 32), invariant=False)
    without.prepare(None)
    assert without._graphs.captured == 2


def test_buckets():
    assert EncoderBucket.of(32, 3, True) == EncoderBucket(32, 8, True)
    assert EncoderBucket.of(33, 3, False) == EncoderBucket(64, 8, False)
    assert EncoderBucket.of(32, 9, True).rows >= 9
    assert EncoderBucket.of(8192, 256, True).is_common
    large = EncoderBucket.of(8195, 3, True)
    assert (large.tokens, large.rows, large.is_common) == (8256, 8, False)
    assert EncoderBucket.of(1000, 300, False).rows >= 300


@pytest.mark.parametrize("upsampling", [2, 8])
def test_offsets_into_a_batch_fit_32_bits(upsampling):
    most = (1 << 19) // upsampling
    EncoderShape(EncoderBucket.of(most, 1, False), 16, 3, upsampling)
    with pytest.raises(ValueError, match="split"):
        EncoderShape(EncoderBucket.of(most + 1, 1, False), 16, 3, upsampling)


@torch.inference_mode()
def test_tables_of_a_batch(small):
    pool = pool_of(small)
    one, two = Voice(pool, 1), Voice(pool, 2)
    first = two.row(40)
    two.state = first.after
    rows = [one.row(5, ahead=1), two.row(50)]
    shape = EncoderShape(EncoderBucket.of(15, 2, True), 16, 3, 2)
    tables = shape.views(torch.from_numpy(shape.numbers(rows)))
    parts = [getattr(tables, name) for name in vars(tables)]
    assert all(part.data_ptr() % 16 == 0 for part in parts)
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
