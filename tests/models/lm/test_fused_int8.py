"""The language model that reads int8 is the one whose weights are what those int8 mean."""

import copy

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu.eight_bits import round_language_model
from tests.fast_flow import quick_interpreter
from tests.models.lm.test_fused import CAPACITY, SLOTS, TILES, dealt, some_ids, tiled
from vivavoce.models.kernels.lm_decode_attention import Dealing
from vivavoce.models.kernels.lm_vector_products import Strip
from vivavoce.models.lm.fused import FusedLM
from vivavoce.models.lm.slot_cache import SlotCache

__all__ = ["dealt"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors on a CPU, in Triton's interpreter")


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


def pair(models, tiles, **kwargs):
    """The one that reads int8, and the same weights in float32, each with a memory."""
    meant = copy.deepcopy(models.lm)
    round_language_model(meant)
    lms = (FusedLM(models.lm, CAPACITY, tiles, int8=True, **kwargs), FusedLM(meant, CAPACITY, tiles, **kwargs))
    caches = [SlotCache.allocate(models.config.lm, SLOTS, CAPACITY, models.device, torch.float32) for _ in lms]
    return tuple(zip(lms, caches, strict=True))


@torch.inference_mode()
def test_prefills_and_steps(models, dealt):
    rows = tiled((2, 0), (0, 0), (1, 2), (some_ids(12, 0, 250), some_ids(5, 1)))
    ids, positions, running = torch.tensor([7, 0, 4000]), torch.tensor([5, 0, 12]), torch.tensor([1, 0, 1])
    found = []
    for lm, cache in pair(models, {}):
        prefilled = lm.prefill(rows, cache)
        found.append((prefilled, lm.step(ids, positions, running, cache)[::2], cache.memory[:, :, 2, :, :13]))
    for made, wanted in zip(*found, strict=True):
        torch.testing.assert_close(made, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=0)


@torch.inference_mode()
def test_a_single_slots_step(models, monkeypatch):
    monkeypatch.setattr("vivavoce.models.lm.fused.dealing_for", lambda _: Dealing(32, 1, 2, 2))
    strips = {shape: Strip(256 if shape.outputs > 256 else 16, 4) for shape in TILES}
    made, wanted = (
        lm.step(torch.tensor([7]), torch.tensor([0]), torch.tensor([1]), cache)
        for lm, cache in pair(models, {}, strips=strips)
    )
    torch.testing.assert_close(made, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=0)


def test_what_is_not_of_the_layers_is_shared(models):
    lm = FusedLM(models.lm, CAPACITY, int8=True)
    assert lm._head.weight.data_ptr() == models.lm.speech_head.weight.data_ptr()
    assert {one.weight.dtype for one in (lm._layers[0].qkv, lm._layers[0].down)} == {torch.int8}
