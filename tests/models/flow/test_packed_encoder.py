"""The packed token encoder computes, row by row, what the network computes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, pad

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from vivavoce.engine.flow_stage.blocks import at_rate, grid_ends, whole_ends
from vivavoce.engine.flow_stage.encoder_tables import EncoderBucket, EncoderShape
from vivavoce.engine.flow_stage.planning import Row, Sight
from vivavoce.models.flow import packed_encoder
from vivavoce.models.flow.layout import convolve
from vivavoce.models.flow.model import Flow
from vivavoce.models.flow.packed_encoder import PackedEncoder
from vivavoce.models.flow.packed_encoder_batch import EncoderBatch
from vivavoce.models.flow.packed_encoder_cuts import encoder_cuts
from vivavoce.models.flow.packed_encoder_weights import PackedEncoderWeights, up_taps
from vivavoce.models.layers.masks import keys_before

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter")


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


def network(models, seed=0, **sizes):
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


def row_of(flow, ends, ahead, seed=0):
    """A row without a past, `ahead` tokens of lookahead, its frames seeing what its tokens do."""
    count = len(ends)
    tokens = torch.randint(0, 50, (count + ahead,), generator=torch.Generator().manual_seed(seed)).numpy()
    frames = at_rate(np.asarray(ends), flow.encoder.config.upsampling)
    return Row(None, tokens, 0, count, (), Sight(np.asarray(ends), frames, frames, np.full(count, len(tokens))))


def expected_of(flow, row):
    """mu [frames, bins]."""
    tokens, masks = torch.as_tensor(row.tokens), (torch.as_tensor(row.sight.tokens), torch.as_tensor(row.sight.frames))
    sights = tuple(keys_before(ends[None], len(ends)) for ends in masks)
    return flow.encoder.encode(flow.token_embedding(tokens)[None], torch.tensor([len(tokens)]), row.new, sights)[0]


def encoded(flow, rows, tokens=128, **options):
    """mu of all rows, end to end."""
    packed, config = PackedEncoder(flow, **options), flow.encoder.config
    queries = packed.cuts(tokens).attention.queries
    shape = EncoderShape(EncoderBucket(tokens, 8, False), queries, config.lookahead, config.upsampling)
    tables = shape.views(torch.from_numpy(shape.numbers(rows)))
    batch = EncoderBatch(tables, torch.full((shape.frames, flow.config.num_mel_bins), float("nan")), None)
    packed.encode(batch)
    assert batch.mu.isfinite().all()
    return batch.mu[: sum(row.new for row in rows) * config.upsampling]


@pytest.fixture(params=["few", "many", "invariant"])
def path(request, monkeypatch):
    """Every way to cut the work, at sizes of tests."""
    sizes = {"few": 64, "many": 10_000, "invariant": 64}

    def cuts(tokens, *, invariant):
        chosen = encoder_cuts(sizes[request.param], invariant=request.param == "invariant")
        return replace(chosen, rows=32)

    monkeypatch.setattr(packed_encoder, "encoder_cuts", cuts)
    return request.param


@torch.inference_mode()
def test_whole_rows(models, path):
    flow = network(models)
    ends = [whole_ends(0, 40), grid_ends(0, 45, 20), np.repeat([4, 9], [4, 5]), whole_ends(0, 1)]
    rows = [row_of(flow, one, ahead, seed) for seed, (one, ahead) in enumerate(zip(ends, (0, 3, 2, 1), strict=True))]
    expected = torch.cat([expected_of(flow, row) for row in rows])
    made = encoded(flow, rows)
    torch.testing.assert_close(made, expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize(
    "sizes", [{"hidden_size": 48, "num_heads": 3}, {"hidden_size": 48, "num_heads": 6}, {"lookahead": 1}], ids=str
)
@torch.inference_mode()
def test_other_sizes(models, sizes):
    flow = network(models, **sizes)
    row = row_of(flow, whole_ends(0, 20), 1)
    expected = expected_of(flow, row)
    torch.testing.assert_close(encoded(flow, [row], 32), expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("size", ["hidden_size", "feed_forward_size"])
def test_sizes_that_kernels_do_not_take(models, size):
    with pytest.raises(ValueError, match="multiple of 16; run without kernels"):
        PackedEncoder(network(models, **{size: 24}))


@pytest.mark.parametrize("upsampling", [1, 2, 3, 4, 5])
@torch.inference_mode()
def test_upsampling_from_windows_of_tokens(models, upsampling):
    """Repeat, convolve, multiply: one product over windows of as many tokens as matter."""
    flow = network(models, upsampling=upsampling)
    encoder, taps = flow.encoder, up_taps(upsampling)
    x = torch.randn(1, 7, 32)
    frames = pad(x.repeat_interleave(upsampling, 1), (0, 0, 4, 0))
    expected = encoder.up_embed.linear(convolve(frames, encoder.up_conv.weight, encoder.up_conv.bias))[0]
    windows = pad(x, (0, 0, taps - 1, 0)).unfold(1, taps, 1).transpose(2, 3)[0].flatten(1)
    weight, bias = PackedEncoderWeights.of(flow).upsample
    torch.testing.assert_close(linear(windows, weight, bias).view(-1, 32), expected, atol=1e-5, rtol=0)
