"""The packed estimator and the packed token encoder compute, row by row, what the networks compute."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, pad

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from vivavoce.checkpoint.config import DiTConfig, LookaheadConfig, UNetConfig
from vivavoce.engine.device import Bucket
from vivavoce.engine.flow_stage.packed_tables import EncoderLayout
from vivavoce.engine.flow_stage.planning import AttentionSpan, Block, FlowRow, block_ends, grid_ends
from vivavoce.models.flow import packed_dit, packed_encoder, packed_unet
from vivavoce.models.flow.dit import DiT
from vivavoce.models.flow.model import Flow, FlowSchedule
from vivavoce.models.flow.packed_dit import PackedDiT, PackedLookahead
from vivavoce.models.flow.packed_encoder import EncoderBatch, PackedEncoder, PackedEncoderWeights, encoder_cuts, up_taps
from vivavoce.models.flow.packed_unet import PackedBatch, PackedUNet, cuts_of
from vivavoce.models.flow.unet import UNet, VelocityContext
from vivavoce.models.layers import keys_before
from vivavoce.models.layout import convolve
from vivavoce_kernels import flow_attention
from vivavoce_kernels.flow_products import ConvTails
from vivavoce_kernels.layouts import PackedTables

STEPS, PAGE = 3, 64
NAN = float("nan")
SIZES = {
    "powers_of_two": UNetConfig(64, 16, 32, 2, 1, 2, 16, 20),
    "others": UNetConfig(64, 16, 48, 1, 1, 1, 48, 20),
    "transformer": DiTConfig(32, 2, 2, 16, 2, 16, 20),
}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter"),
]


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter(), pytest.MonkeyPatch.context() as patch:
        # Fewer programs of what has tests of its own; still several.
        patch.setattr(packed_unet, "NORM_ROWS", 64)
        patch.setattr(packed_dit, "NORM_ROWS", 64)
        patch.setattr(flow_attention, "_FRAMES", 32)
        yield


@dataclass
class Past:
    """A row's memory, the plain way: everything that was computed, one after the other."""

    keys: list
    tails: torch.Tensor

    @classmethod
    def empty(cls, shape):
        keys = [torch.zeros(2, 0, shape.key_channels) for _ in range(shape.sites)]
        return cls(keys, torch.zeros(2, shape.tail, shape.tail_channels))

    def copy(self):
        return Past(list(self.keys), self.tails.clone())

    def extend(self, first, x):
        extended = torch.cat((self.tails[..., first : first + x.shape[2]], x), dim=1)
        self.tails[..., first : first + x.shape[2]] = extended[:, -self.tails.shape[1] :]
        return extended

    def recall(self, site, keys):
        self.keys[site] = torch.cat((self.keys[site], keys), dim=1)
        return self.keys[site]


@dataclass
class Row:
    """New frames [2, frames, in] behind a past, and the end of what each sees."""

    features: torch.Tensor
    ends: torch.Tensor
    past: Past

    @property
    def start(self):
        return self.past.keys[0].shape[1]


def network(config, seed=0):
    torch.manual_seed(seed)
    unet = (UNet if isinstance(config, UNetConfig) else DiT)(config).requires_grad_(False).eval()
    for name, parameter in unet.named_parameters():
        # Biases as large as what they are added to: one that comes twice or never shows.
        parameter.copy_(torch.randn_like(parameter) * (0.5 if "bias" in name else parameter[0].numel() ** -0.5))
        if "norm" in name and "weight" in name:
            parameter.add_(1)
    unet.lay_out()
    return unet, FlowSchedule.euler(unet, STEPS)


def packed_of(unet, schedule):
    return (PackedUNet if isinstance(unet, UNet) else PackedDiT)(unet, [schedule], 0.7)


def plain(unet, schedule, step, row, memory):
    """Velocities [2, frames, bins]; the memory goes on."""
    ends = row.ends[None]
    mask = keys_before(ends, int(ends.max()))
    start = memory.keys[0].shape[1]
    places = {} if isinstance(unet, UNet) else {"positions": torch.arange(start, start + len(row.ends))[None]}
    return unet.velocity(row.features, VelocityContext(schedule.biases[step], mask, memory, **places))


def row_of(unet, schedule, step, past, ends, generator):
    """A row whose past was computed in one piece, each frame seeing all of it."""
    shape, size = unet.memory_shape, unet.config.in_channels
    memory = Past.empty(shape)
    if past:
        before = torch.randn(2, past, size, generator=generator)
        plain(unet, schedule, step, Row(before, torch.tensor(np.full(past, past)), memory), memory)
    return Row(torch.randn(2, len(ends), size, generator=generator), torch.as_tensor(ends), memory)


def pack(unet, rows, step, frames, tile, *, paged):
    """A packed batch, its padding and whatever is not to be read spoilt."""
    shape, bins = unet.memory_shape, unet.config.out_channels
    capacity, width, pool = len(rows) + 2, 5, 4 * len(rows) + 2
    int32 = {"dtype": torch.int32}
    tables = PackedTables(
        *(torch.full((frames,), value, **int32) for value in (0, -1, 0, 0)),
        *(torch.zeros(capacity, **int32) for _ in range(2)),
        torch.zeros(frames // tile + capacity, 3, **int32),
        torch.zeros(capacity, width if paged else 0, **int32),
    )
    features = torch.full((2, frames, unet.config.in_channels), NAN)
    keys = torch.full((pool, STEPS, shape.sites, 2, PAGE, shape.key_channels), NAN)
    before = torch.full((2, capacity, shape.tail, shape.tail_channels), NAN)
    free = torch.randperm(pool - 1, generator=torch.Generator().manual_seed(1)).add(1).tolist()
    place, tiles = 0, 0
    for number, row in enumerate(rows):
        new, start = len(row.ends), row.start
        span = slice(place, place + new)
        tables.row[span], tables.ends[span] = number, row.ends.int()
        tables.local[span] = torch.arange(new, **int32)
        tables.position[span] = torch.arange(start, start + new, **int32)
        tables.first[number], tables.length[number] = place, new
        for first in range(0, new, tile):
            tables.tiles[tiles] = torch.tensor([number, place + first, min(tile, new - first)], **int32)
            tiles += 1
        features[:, span] = row.features
        before[:, number] = row.past.tails
        for page in range(-(-(start + new) // PAGE) if paged else 0):
            tables.pages[number, page] = free.pop()
            held = min(PAGE, start - page * PAGE)
            for site in range(shape.sites if held > 0 else 0):
                known = row.past.keys[site][:, page * PAGE :][:, :held]
                keys[tables.pages[number, page], step, site, :, :held] = known
        place += new
    for first in range(place, frames, tile):
        tables.tiles[tiles] = torch.tensor([0, first, min(tile, frames - first)], **int32)
        tiles += 1
    return PackedBatch(
        features[0, :, :bins].clone(),
        features.flatten(0, 1),
        torch.tensor([step, step], **int32),
        tables,
        keys if paged else None,
        ConvTails(before, torch.full_like(before, NAN)) if paged else None,
    )


def rows_of(unet, schedule, step, seed=0):
    """Ragged rows with pasts of their own, in blocks."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(0, (2, 20)), (130, (2,)), (64, (5, 66)), (127, (3, 4))]
    return [
        row_of(
            unet,
            schedule,
            step,
            past,
            block_ends([Block(past + b, 0) for b in bounds], past, past + bounds[-1])[0],
            generator,
        )
        for past, bounds in shapes
    ]


def check_row(unet, schedule, step, batch, velocity, row, number):
    start, new = int(batch.tables.first[number]), len(row.ends)
    memory = row.past.copy()
    expected = plain(unet, schedule, step, row, memory)
    made = velocity.view(2, -1, expected.shape[2])[:, start : start + new]
    torch.testing.assert_close(made, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
    if batch.keys is None:
        return
    torch.testing.assert_close(batch.tails.after[:, number], memory.tails, atol=1e-4, rtol=1e-5)
    table = batch.tables.pages[number].tolist()
    for site, known in enumerate(memory.keys):
        pages = [batch.keys[page, step, site] for page in table[: -(-known.shape[1] // PAGE)]]
        kept = torch.cat(pages, dim=1)
        torch.testing.assert_close(kept[:, : known.shape[1]], known, atol=1e-4, rtol=1e-5)
        assert kept[:, known.shape[1] :].isnan().all()


PATHS = ("library", "few", "invariant")


@pytest.fixture
def path(request, monkeypatch):
    """Every way to cut the work, at sizes of tests."""
    sizes = {"library": 10_000, "few": 64, "invariant": 64}

    def cuts(frames, *, invariant):
        return cuts_of(sizes[request.param], invariant=request.param == "invariant")

    monkeypatch.setattr(packed_unet, "cuts_of", cuts)
    return request.param


@pytest.mark.parametrize(
    ("size", "path"),
    [*((size, path) for size in ("powers_of_two", "transformer") for path in PATHS), ("others", "few")],
    indirect=["path"],
)
@torch.inference_mode()
def test_rows_with_pasts_in_pages(size, path):
    unet, schedule = network(SIZES[size])
    packed = packed_of(unet, schedule)
    rows = rows_of(unet, schedule, 1)
    batch = pack(unet, rows, 1, 128, packed.cuts(128).attention.queries, paged=True)
    velocity = packed.velocity(batch)
    for number, row in enumerate(rows):
        check_row(unet, schedule, 1, batch, velocity, row, number)


@pytest.mark.parametrize(
    ("size", "path"), [*(("powers_of_two", path) for path in PATHS), ("transformer", "few")], indirect=["path"]
)
@torch.inference_mode()
def test_whole_rows_without_pages(size, path):
    unet, schedule = network(SIZES[size])
    packed = packed_of(unet, schedule)
    generator = torch.Generator().manual_seed(2)
    ends = [np.full(66, 66), grid_ends(0, 45, 20), np.repeat([4, 9], [4, 5]), np.full(2, 2)]
    rows = [row_of(unet, schedule, 0, 0, one, generator) for one in ends]
    batch = pack(unet, rows, 0, 128, packed.cuts(128).attention.queries, paged=False)
    velocity = packed.velocity(batch)
    for number, row in enumerate(rows):
        check_row(unet, schedule, 0, batch, velocity, row, number)


def test_sizes_of_groups_that_kernels_do_not_take():
    with pytest.raises(ValueError, match=r"3 channels in each of 16 groups.*run without kernels"):
        packed_of(*network(replace(SIZES["transformer"], size=48)))


def encoder_network(models, seed=0, **sizes):
    """A flow whose encoder has two blocks and one, and biases as large as what they are added to."""
    torch.manual_seed(seed)
    given = models.config.flow
    sizes = {"hidden_size": 32, "num_heads": 2, "feed_forward_size": 48, "num_blocks": 2, "num_up_blocks": 1, **sizes}
    flow = Flow(replace(given, num_tokens=50, encoder=replace(given.encoder, **sizes))).eval().requires_grad_(False)
    for name, parameter in flow.encoder.named_parameters():
        scale = 0.5 if "bias" in name else parameter[0].numel() ** -0.5
        parameter.copy_(torch.randn_like(parameter) * scale + ("norm" in name and "weight" in name))
    flow.lay_out()
    return flow


def lookahead_network(models):
    """A flow of CosyVoice3's kind."""
    torch.manual_seed(0)
    estimator = replace(SIZES["transformer"], out_channels=80)
    flow = Flow(
        replace(models.config.flow, num_tokens=50, encoder=LookaheadConfig(80, 48, 3, 2, 25), estimator=estimator)
    )
    flow.lay_out()
    return flow.eval().requires_grad_(False)


def tokens_row(flow, ends, ahead, seed=0):
    """A row without a past, `ahead` tokens of lookahead, its frames seeing what its tokens do."""
    count = len(ends)
    tokens = torch.randint(0, 50, (count + ahead,), generator=torch.Generator().manual_seed(seed)).numpy()
    up = flow.encoder.config.upsampling
    frames = np.repeat(np.asarray(ends) * up, up)
    row = FlowRow(None, end=count)
    row.tokens = tokens
    row.span = AttentionSpan(np.asarray(ends), frames, frames, np.full(count, len(tokens)))
    return row


def expected_of(flow, row):
    """mu [frames, bins]."""
    tokens, masks = torch.as_tensor(row.tokens), (torch.as_tensor(row.span.tokens), torch.as_tensor(row.span.frames))
    masks_of = tuple(keys_before(ends[None], len(ends)) for ends in masks)
    return flow.encoder.encode(flow.token_embedding(tokens)[None], torch.tensor([len(tokens)]), row.new, masks_of)[0]


def encoded(flow, rows, tokens=128, **options):
    """mu of all rows, end to end."""
    kind = PackedLookahead if isinstance(flow.encoder.config, LookaheadConfig) else PackedEncoder
    packed, config = kind(flow, **options), flow.encoder.config
    queries = packed.cuts(tokens).attention.queries
    layout = EncoderLayout(Bucket(tokens, 8, False), queries, config.lookahead, config.upsampling)
    tables = layout.tables(torch.from_numpy(layout.numbers(rows)))
    batch = EncoderBatch(tables, torch.full((layout.frames, flow.config.num_mel_bins), float("nan")), None)
    packed.encode(batch)
    assert batch.mu.isfinite().all()
    return batch.mu[: sum(row.new for row in rows) * config.upsampling]


@pytest.fixture(params=["few", "many", "invariant"])
def cut(request, monkeypatch):
    """Every way to cut the work, at sizes of tests."""
    sizes = {"few": 64, "many": 10_000, "invariant": 64}

    def cuts(tokens, *, invariant):
        chosen = encoder_cuts(sizes[request.param], invariant=request.param == "invariant")
        return replace(chosen, rows=32)

    for module in (packed_encoder, packed_dit):
        monkeypatch.setattr(module, "encoder_cuts", cuts)
    return request.param


@pytest.mark.parametrize("network", [encoder_network, lookahead_network])
@torch.inference_mode()
def test_whole_rows_of_tokens(models, network, cut):
    flow = network(models)
    ends = [np.full(40, 40), grid_ends(0, 45, 20), np.repeat([4, 9], [4, 5]), np.full(1, 1)]
    rows = [
        tokens_row(flow, one, ahead, seed) for seed, (one, ahead) in enumerate(zip(ends, (0, 3, 2, 1), strict=True))
    ]
    expected = torch.cat([expected_of(flow, row) for row in rows])
    made = encoded(flow, rows)
    torch.testing.assert_close(made, expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize(
    "sizes", [{"hidden_size": 48, "num_heads": 3}, {"hidden_size": 48, "num_heads": 6}, {"lookahead": 1}], ids=str
)
@torch.inference_mode()
def test_other_sizes(models, sizes):
    flow = encoder_network(models, **sizes)
    row = tokens_row(flow, np.full(20, 20), 1)
    expected = expected_of(flow, row)
    torch.testing.assert_close(encoded(flow, [row], 32), expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("size", ["hidden_size", "feed_forward_size"])
def test_sizes_that_kernels_do_not_take(models, size):
    with pytest.raises(ValueError, match="multiple of 16; run without kernels"):
        PackedEncoder(encoder_network(models, **{size: 24}))


@pytest.mark.parametrize("upsampling", [1, 2, 3, 4, 5])
@torch.inference_mode()
def test_upsampling_from_windows_of_tokens(models, upsampling):
    """Repeat, convolve, multiply: one product over windows of as many tokens as matter."""
    flow = encoder_network(models, upsampling=upsampling)
    encoder, taps = flow.encoder, up_taps(upsampling)
    x = torch.randn(1, 7, 32)
    frames = pad(x.repeat_interleave(upsampling, 1), (0, 0, 4, 0))
    expected = encoder.up_embed.linear(convolve(frames, encoder.up_conv.weight, encoder.up_conv.bias))[0]
    windows = pad(x, (0, 0, taps - 1, 0)).unfold(1, taps, 1).transpose(2, 3)[0].flatten(1)
    weight, bias = PackedEncoderWeights.of(flow).upsample
    torch.testing.assert_close(linear(windows, weight, bias).view(-1, 32), expected, atol=1e-5, rtol=0)
