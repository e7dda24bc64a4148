"""The U-Net's levels in one launch (`short_rows`) equal the layers one by one, whoever shares the batch."""

from dataclasses import replace

import pytest
import torch

from vivavoce.checkpoint.config import UNetConfig
from vivavoce.models.flow.model import FlowSchedule
from vivavoce.models.flow.packed_unet import PackedBatch, PackedUNet
from vivavoce.models.flow.unet import UNet
from vivavoce_kernels.cuda_kernel import takes_clusters
from vivavoce_kernels.flow_products import ConvTails
from vivavoce_kernels.layouts import KEY_TILE, SHORT_FRAMES, SHORT_ROWS, PackedTables

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
ROWS = ((174, 26), (60, SHORT_FRAMES), (0, 9), (1000, 30), (128, 26), (190, 26), (174, 31))
"""Frames of each row's past, and new ones."""
POSITIONS = 256


@pytest.fixture(scope="module")
def unets():
    if not takes_clusters(torch.zeros(1, device=CUDA, dtype=torch.float16)):
        pytest.skip("the GPU has no clusters of programs")
    torch.manual_seed(0)
    made = UNet(UNetConfig(320, 80, 256, 2, 3, 8, 64, 50)).requires_grad_(False)
    for name, parameter in made.named_parameters():
        parameter.copy_(torch.randn_like(parameter) * (0.1 if "bias" in name else parameter[0].numel() ** -0.5))
        if "norm" in name and "weight" in name:
            parameter.mul_(0.3).add_(1)
    made = made.half().to(CUDA).eval()
    made.lay_out()
    return made, PackedUNet(made, [FlowSchedule.euler(made, 10)], 0.7)


def batch_of(network, rows):
    """Rows with their own random pasts and frames, the same in whatever company."""
    int32 = {"dtype": torch.int32}
    tables = PackedTables(
        *(torch.full((POSITIONS,), value, **int32) for value in (0, -1, 0, 0)),
        *(torch.zeros(8, **int32) for _ in range(2)),
        torch.zeros(16, 3, **int32),
        torch.zeros(8, 20, **int32),
    )
    shape, pages, start = network.memory_shape, 1 + sum(-(-sum(row) // KEY_TILE) for row in rows), 0
    keys = torch.zeros(pages, 1, shape.sites, 2, KEY_TILE, shape.key_channels)
    tails = ConvTails(*(torch.zeros(2, 8, shape.tail, shape.tail_channels) for _ in range(2)))
    x, features = torch.zeros(POSITIONS, 80), torch.zeros(2, POSITIONS, 320)
    page = 1
    for number, (past, new) in enumerate(rows):
        torch.manual_seed(past * 100 + new)
        span = slice(start, start + new)
        tables.row[span], tables.local[span] = number, torch.arange(new, **int32)
        tables.position[span], tables.ends[span] = torch.arange(past, past + new, **int32), past + new
        tables.first[number], tables.length[number] = start, new
        tables.tiles[number] = torch.tensor([number, start, new])
        own = -(-(past + new) // KEY_TILE)
        tables.pages[number, :own] = torch.arange(page, page + own, **int32)
        keys[page : page + own] = torch.randn(keys[:own].shape)
        tails.before[:, number] = torch.randn(tails.before[:, 0].shape)
        x[span], features[:, span] = torch.randn(new, 80), torch.randn(2, new, 320)
        start, page = start + new, page + own
    on_device = PackedTables(*(table.to(CUDA) for table in tables))
    halves = ConvTails(*(part.half().to(CUDA) for part in tails))
    step = torch.tensor([3, 0], **int32, device=CUDA)
    features = features.flatten(0, 1).half().to(CUDA)
    return PackedBatch(x.to(CUDA), features, step, on_device, keys.half().to(CUDA), halves, short=True)


def by_row(velocity, rows):
    found, start = [], 0
    for _, new in rows:
        found.append(velocity.view(2, POSITIONS, -1)[:, start : start + new].float().cpu())
        start += new
    return found


@torch.inference_mode()
def test_short_rows_equal_the_layers_one_by_one(unets):
    network, packed = unets
    assert len(ROWS) == SHORT_ROWS
    short = batch_of(network, ROWS)
    plain = batch_of(network, ROWS)
    made = by_row(packed.velocity(short), ROWS)
    for one, other in zip(made, by_row(packed.velocity(replace(plain, short=False)), ROWS), strict=True):
        assert (one - other).norm() < 5e-3 * other.norm()
    for one, other in ((short.keys, plain.keys), (short.tails.after, plain.tails.after)):
        assert (one.float() - other.float()).norm() < 5e-3 * other.float().norm()


@torch.inference_mode()
def test_a_short_row_has_the_same_bits_in_any_company(unets):
    network, packed = unets
    together = by_row(packed.velocity(batch_of(network, ROWS)), ROWS)
    for place in (0, 3, 6):
        own = ROWS[place : place + 1]
        (alone,) = by_row(packed.velocity(batch_of(network, own)), own)
        assert torch.equal(alone, together[place])
