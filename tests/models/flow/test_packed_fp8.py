"""The packed estimator in e4m3 is the network whose products read what those e4m3 mean."""

import copy

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu.eight_bits import round_flow
from tests.eight_bit_interpreter import eight_bit_interpreter
from tests.models.flow.test_packed_flow import SIZES, Past, Row, network, pack, plain, rows_of
from vivavoce.engine.flow_stage.blocks import whole_ends
from vivavoce.models.flow.packed import PackedUNet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter"),
    # Of padding that is spoilt; a GPU's maximum of nothing but NaN is silent.
    pytest.mark.filterwarnings("ignore:All-NaN slice"),
]


@pytest.fixture(autouse=True, scope="module")
def quick():
    with eight_bit_interpreter():
        yield


def off(made, wanted):
    return float((made - wanted).norm() / wanted.norm())


@torch.inference_mode()
def test_rows_with_pasts():
    unet, schedule = network(SIZES["others"])
    packed = PackedUNet(unet, schedule, 0.7, fp8=True)
    rows = rows_of(unet, schedule, 1)[0::3]
    batch = pack(unet, rows, 1, 64, packed.cuts(64).attention.queries, paged=True)
    velocity = packed.velocity(batch)
    meant = copy.deepcopy(unet)
    round_flow(meant)
    for number, row in enumerate(rows):
        wanted, exact = (plain(one, schedule, 1, row, row.past.copy()) for one in (meant, unet))
        first = int(batch.tables.first[number])
        made = velocity.view(2, -1, wanted.shape[2])[:, first : first + wanted.shape[1]]
        # A sum that is rounded otherwise may fall on the other side of a step, here and there.
        assert off(made, wanted) < off(wanted, exact) / 2
        assert 5e-3 < off(made, exact) < 0.15


@torch.inference_mode()
def test_a_row_does_not_depend_on_its_company():
    unet, schedule = network(SIZES["others"])
    packed = PackedUNet(unet, schedule, 0.7, invariant=True, fp8=True)
    generator = torch.Generator().manual_seed(3)
    size = unet.config.in_channels
    rows = [
        Row(torch.randn(2, count, size, generator=generator), torch.tensor(whole_ends(0, count)),
            Past.empty(unet.memory_shape))
        for count in (10, 9)
    ]  # fmt: skip
    tile = packed.cuts(64).attention.queries
    alone, together = (
        packed.velocity(pack(unet, some, 0, 64, tile, paged=False)).view(2, 64, -1) for some in (rows[1:], rows)
    )
    torch.testing.assert_close(together[:, 10:19], alone[:, :9], rtol=0, atol=1e-5)
