"""The clusters' kernels, whose threads a CPU runs one after another, compute what the networks' blocks do."""

from typing import NamedTuple

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.emulation import compiled, runner
from vivavoce.checkpoint.config import UNetConfig
from vivavoce.models.flow import packed_unet
from vivavoce.models.flow.packed_unet import short_level
from vivavoce.models.flow.unet import UNet
from vivavoce.models.layers import keys_before
from vivavoce_kernels import cuda_kernel
from vivavoce_kernels.flow_products import ConvTails
from vivavoce_kernels.layouts import KEY_TILE, PackedTables
from vivavoce_kernels.short_rows import Evaluation, ShortLevels

STEPS, STEP, SITES, FIRST = 2, 1, 4, 1
FRAMES = 96
ROWS = ((174, 30), (60, 32), (0, 7))
"""Frames of each row's past, and new ones; the second row's new keys lie in two pages."""

EVALUATION = Evaluation(torch.randn(3, 3, 256).half(), torch.tensor([2, STEP], dtype=torch.int32))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled("emulated", tmp_path_factory.mktemp("kernels"))


class Batch(NamedTuple):
    x: torch.Tensor
    keys: torch.Tensor
    tables: PackedTables
    ends: list[torch.Tensor]

    @classmethod
    def of(cls, channels, key_channels, sites, rows):
        torch.manual_seed(0)
        int32 = {"dtype": torch.int32}
        tables = PackedTables(
            *(torch.full((FRAMES,), value, **int32) for value in (0, -1, 0, 0)),
            *(torch.zeros(len(rows) + 1, **int32) for _ in range(2)),
            torch.zeros(len(rows) + 3, 3, **int32),
            torch.zeros(len(rows) + 1, 6, **int32),
        )
        free = torch.randperm(20).add(1).tolist()
        keys = torch.full((21, STEPS, sites, 2, KEY_TILE, key_channels), torch.nan, dtype=torch.float16)
        start, all_ends = 0, []
        for number, (past, new) in enumerate(rows):
            ends = torch.full((new,), past + new)
            ends[: new // 3] = past + new // 3
            span = slice(start, start + new)
            tables.tiles[number] = torch.tensor([number, start, new])
            tables.position[span], tables.ends[span] = torch.arange(past, past + new), ends
            for page in range(-(-(past + new) // KEY_TILE)):
                tables.pages[number, page] = free.pop()
                held = min(KEY_TILE, past - page * KEY_TILE)
                if held > 0:
                    keys[tables.pages[number, page], ..., :held, :] = torch.randn(
                        STEPS, sites, 2, held, key_channels
                    ).half()
            start += new
            all_ends.append(ends)
        tables.tiles[len(rows)] = torch.tensor([0, start, FRAMES - start])  # padding
        return cls(torch.randn(2 * FRAMES, channels).half(), keys, tables, all_ends)

    def of_row(self, number, size):
        """The row's frames of both copies: [2, frames, channels]."""
        start = int(self.tables.tiles[number, 1])
        return self.x.view(2, FRAMES, -1)[:, start : start + size].float()

    def keys_of_row(self, number, site, size):
        pages = self.keys[self.tables.pages[number, : -(-size // KEY_TILE)].long(), STEP, site]
        return pages.transpose(0, 1).flatten(1, 2)[:, :size].float()


class Memory:
    """The row's keys in the pages, at sites from `first` on; remembers what is added."""

    def __init__(self, batch, number, past, first):
        self._args, self._first, self.added = (batch, number, past), first, {}

    def recall(self, site, keys):
        batch, number, past = self._args
        self.added[site] = keys
        return torch.cat((batch.keys_of_row(number, self._first + site, past), keys), dim=1)


def near(made, expected):
    assert (made - expected).norm() < 2e-3 * expected.norm()


def check(before, after, rows, first, expected):
    """expected: of a row's number, frames and memory: its frames when the blocks have run."""
    for number, (past, new) in enumerate(rows):
        memory = Memory(before, number, past, first)
        want = expected(number, before.of_row(number, new), memory)
        near(after.of_row(number, new), want)
        for site, keys in memory.added.items():
            near(after.keys_of_row(number, first + site, past + new)[:, past:], keys)
    used = sum(new for _, new in rows)
    padding = [one.x.view(2, FRAMES, -1)[:, used:] for one in (before, after)]
    assert torch.equal(*padding)


def randomized(network):
    """With biases as large as what they are added to."""
    for name, parameter in network.named_parameters():
        parameter.copy_(torch.randn_like(parameter) * (0.5 if "bias" in name else parameter[0].numel() ** -0.5))
        if "norm" in name and "weight" in name:
            parameter.mul_(0.3).add_(1)
    return network.half().float()


@torch.inference_mode()
def test_the_blocks_of_a_level(library):
    unet = randomized(UNet(UNetConfig(64, 16, 256, 2, 1, 8, 64, 20)).requires_grad_(False))
    blocks = unet.down.blocks
    ahead = sum(bias for one in blocks for bias in (one.attention.out.bias, one.feed_forward.contract.bias))
    levels = ShortLevels([short_level(unet.down.half(), with_resnet=False)], FIRST, runner(library.run_levels))
    before = Batch.of(256, 1024, SITES, ROWS)
    after = before._replace(x=before.x.clone(), keys=before.keys.clone())
    tails = ConvTails(*(torch.zeros(2, len(ROWS) + 1, 2, 1536, dtype=torch.float16) for _ in range(2)))
    levels(after.x, after.keys, tails, after.tables, EVALUATION)
    unet.float()

    def expected(number, x, memory):
        x = x - ahead
        ends = before.ends[number]
        for block in blocks:
            x = block(x, keys_before(ends[None], int(ends.max())), memory)
        return x

    check(before, after, ROWS, FIRST * len(blocks), expected)


@torch.inference_mode()
def test_levels_with_convolutions(library):
    unet = randomized(UNet(UNetConfig(64, 16, 256, 1, 2, 8, 64, 20)).requires_grad_(False))
    inner, rows = list(unet.mid), ROWS[:2]
    levels = ShortLevels(
        [short_level(one.half(), with_resnet=True) for one in inner], FIRST, runner(library.run_levels)
    )
    unet.float()
    before = Batch.of(256, 1024, SITES, rows)
    after = before._replace(x=before.x.clone(), keys=before.keys.clone())
    width = inner[-1].resnet.conv2.first + 256
    tails = ConvTails(torch.randn(2, 3, 2, width).half(), torch.full((2, 3, 2, width), torch.nan, dtype=torch.float16))
    levels(after.x, after.keys, tails, after.tables, EVALUATION)

    def expected(number, x, memory):
        memory.extend = lambda first, inputs: extended(number, first, inputs)
        ends = before.ends[number]
        for index, one in enumerate(inner):
            x = one(
                x,
                EVALUATION.times[int(EVALUATION.step[0]), FIRST + index].float(),
                keys_before(ends[None], int(ends.max())),
                memory,
            )
        return x

    def extended(number, first, inputs):
        span = slice(first, first + inputs.shape[2])
        near(tails.after[:, number, :, span].float(), inputs[:, -2:])
        return torch.cat((tails.before[:, number, :, span].float(), inputs), dim=1)

    check(before, after, rows, 0, expected)


def test_without_a_compiler_the_layers_are_computed_one_by_one(monkeypatch):
    def refused(*_):
        raise RuntimeError("no NVRTC")

    unet = UNet(UNetConfig(64, 16, 256, 1, 1, 8, 64, 20)).requires_grad_(False)
    assert packed_unet._short_levels(unet) is None
    monkeypatch.setattr(packed_unet, "takes_clusters", lambda weight: True)
    monkeypatch.setattr(cuda_kernel, "CudaKernel", refused)
    with pytest.warns(RuntimeWarning, match="first chunks take longer.* no NVRTC"):
        assert packed_unet._short_levels(unet) is None
