"""The language model by kernels of our own is `SlotLM`, over the same slot memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

pytest.importorskip("triton")

from tests.fast_flow import quick_interpreter
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.settings import vocabulary_of
from vivavoce.models.lm.fused import ROW_TILE, FusedLM, TiledRows
from vivavoce.models.lm.slot_lm import PackedRows, SlotCache, SlotLM
from vivavoce.models.lm.text_attention import Observed, TextHeads, TextObserver
from vivavoce_kernels.lm_attention import SplitK
from vivavoce_kernels.lm_products import STRIPS, Shape, Strip, Tile, Tiles
from vivavoce_kernels.lm_products import TILES as RELEASED

CAPACITY, SLOTS, SINK = 160, 4, 3
TILES: Tiles = {
    Shape(128, 64): {16: Tile(32, 32, 1, 4, 2)},
    Shape(64, 64): {16: Tile(16, 32, 2, 4, 2), 64: Tile(32, 16, 2, 4, 2)},
    Shape(128, 64, gated=True): {16: Tile(32, 64, 1, 4, 2)},
    Shape(64, 128): {16: Tile(32, 32, 4, 4, 2), 64: Tile(32, 64, 1, 4, 2)},
    **{Shape(ids, 64): {16: Tile(1024, 64, 1, 4, 2)} for ids in (6564, 6761)},
}
"""Every product of the small checkpoint, split and whole."""


@pytest.mark.parametrize("generation", [Generation.V2, Generation.V3])
def test_the_released_heads_have_tiles_and_strips(generation):
    """A head without them would send every product of a single slot to the library."""
    head = Shape(vocabulary_of(generation, 6561).num_logits, 896)
    assert head in RELEASED
    assert head in STRIPS


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_interpreter():
        yield


@pytest.fixture
def dealt(monkeypatch):
    """A length is dealt out to two programs: an interpreter gets through them."""
    monkeypatch.setattr("vivavoce.models.lm.fused.split_k_for", lambda _: SplitK(32, 2, 2, 2))


def tiled(slots: Sequence[int], starts: Sequence[int], kinds: Sequence[int], ids: Sequence[Sequence[int]]) -> TiledRows:
    """Rows of some sequences, each of one kind."""
    rows, last = [], []
    for slot, start, kind, own in zip(slots, starts, kinds, ids, strict=True):
        last.append(len(rows) + len(own) - 1)
        rows += [(kind, one, slot, start + place) for place, one in enumerate(own)]
        rows += [(0, 0, SINK, 0)] * (-len(rows) % ROW_TILE)
    return TiledRows(*torch.tensor(rows).T.contiguous(), torch.tensor(last))


def some_ids(count: int, seed: int, end: int = 6561) -> list[int]:
    return torch.randint(0, end, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def plain_scores(
    lm: SlotLM, slots: Sequence[int], starts: Sequence[int], rows: TiledRows, cache: SlotCache
) -> torch.Tensor:
    """`SlotLM.prefill` of the same rows."""
    longest = -(-int((rows.last + 1).diff(prepend=torch.zeros(1, dtype=torch.int64)).max()) // 8) * 8
    firsts = [0, *(-(-(one + 1) // ROW_TILE) * ROW_TILE for one in rows.last.tolist()[:-1])]
    padded = torch.stack([torch.arange(longest).clamp(max=last - first) + first
                          for first, last in zip(firsts, rows.last.tolist(), strict=True)])  # fmt: skip
    unpadded = torch.zeros(len(rows.ids), dtype=torch.int64)
    for number, (first, last) in enumerate(zip(firsts, rows.last.tolist(), strict=True)):
        unpadded[first : last + 1] = torch.arange(last + 1 - first) + number * longest
    packed = PackedRows(rows.kinds, rows.ids, rows.slots, rows.positions, unpadded, torch.tensor(slots),
                        torch.tensor(starts), padded, rows.last)  # fmt: skip
    return lm.prefill(packed, cache, 128)


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "tiles"), [("models", {}), ("models_v3", TILES)], ids=["library", "tiles"])
@torch.inference_mode()
def test_prefills_and_steps_are_the_plain_ones(generation, dealt, tiles, request):
    """Of CosyVoice2, and of CosyVoice3, whose control rows are speech embeddings and whose head has no bias."""
    owner = request.getfixturevalue(generation)
    fused, plain = FusedLM(owner.lm, CAPACITY, tiles), SlotLM(owner.lm, CAPACITY)
    ours, theirs = (SlotCache.allocate(owner.config.lm, SLOTS, CAPACITY, owner.device, torch.float32) for _ in "ab")
    first = tiled((2, 0), (0, 0), (1, 2), (some_ids(21, 0, 250), some_ids(5, 1)))
    again = tiled((2,), (21,), (2,), (some_ids(16, 2),))
    for rows, slots, starts in ((first, (2, 0), (0, 0)), (again, (2,), (21,))):
        got = fused.prefill(rows, ours).log_softmax(-1)
        torch.testing.assert_close(got, plain_scores(plain, slots, starts, rows, theirs), atol=2e-5, rtol=0)
    ids, positions, running = torch.tensor([7, 0, 4000]), torch.tensor([5, 0, 37]), torch.tensor([1, 0, 1])
    for _ in range(2):
        got = fused.step(ids, positions, running, ours).log_softmax(-1)
        wanted = plain.step(ids, positions, theirs, 128)
        torch.testing.assert_close(got[::2], wanted[::2], atol=2e-5, rtol=0)
        assert got.isfinite().all()
        positions = positions + running
    torch.testing.assert_close(ours.memory[:, :, 2, :, :39], theirs.memory[:, :, 2, :, :39], atol=1e-5, rtol=0)
    assert not ours.memory[:, :, 1].any()


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "splits"), [("models_v3", 1), ("models", 3)])
@torch.inference_mode()
def test_a_single_slots_step_is_the_plain_one(generation, monkeypatch, splits, request):
    owner = request.getfixturevalue(generation)
    monkeypatch.setattr("vivavoce.models.lm.fused.split_k_for", lambda _: SplitK(32, splits, 2, 2))
    strips = {shape: Strip(256 if shape.outputs > 256 else 16, 4) for shape in TILES}
    config = owner.config.lm
    fused, plain = FusedLM(owner.lm, CAPACITY, {}, strips), SlotLM(owner.lm, CAPACITY)
    ours = SlotCache.allocate(config, SLOTS, CAPACITY, owner.device, torch.float32)
    ours.memory.normal_(generator=torch.Generator().manual_seed(0))
    theirs = SlotCache(ours.memory.clone())
    observer = TextObserver(config, TextHeads(((0, 1), (1, 0)), 0.0), SLOTS, 8, owner.device)
    observer.places[0, :5], observer.counts[0] = torch.arange(3, 8), 5
    for position in (0, 40, 41):
        ids, positions = torch.tensor([7 + position]), torch.tensor([position])
        seen, wanted = (Observed(observer, torch.zeros(1, 8)) for _ in "ab")
        got = fused.step(ids, positions, torch.ones_like(ids), ours, seen).log_softmax(-1)
        torch.testing.assert_close(got, plain.step(ids, positions, theirs, 128, wanted), atol=2e-5, rtol=0)
        torch.testing.assert_close(seen.out, wanted.out, atol=1e-4, rtol=0)
        assert seen.out.sum() == pytest.approx(1.0)
    torch.testing.assert_close(ours.memory, theirs.memory, atol=1e-5, rtol=0)
    before = ours.memory.clone()
    assert fused.step(ids, positions + 1, torch.zeros_like(ids), ours).isfinite().all()
    assert torch.equal(before, ours.memory)


@torch.inference_mode()
def test_half_precision_is_near(models, dealt):
    half = copy.deepcopy(models.lm).half()
    fused, plain = FusedLM(half, CAPACITY), FusedLM(models.lm, CAPACITY)
    rows = tiled((2,), (0,), (1,), (some_ids(13, 0, 250),))
    scores = []
    for lm, dtype in ((fused, torch.float16), (plain, torch.float32)):
        cache = SlotCache.allocate(models.config.lm, SLOTS, CAPACITY, models.device, dtype)
        prefilled = lm.prefill(rows, cache).float()
        stepped = lm.step(torch.tensor([0, 0, 7]), torch.tensor([0, 0, 13]), torch.tensor([0, 0, 1]), cache)[2:].float()
        scores.append(torch.cat((prefilled, stepped)))
    assert float((scores[0] - scores[1]).norm() / scores[1].norm()) < 5e-3


@torch.inference_mode()
def test_weights_are_not_held_twice(models):
    lm = copy.deepcopy(models.lm)
    fused = FusedLM(lm, CAPACITY)
    rows = tiled((0,), (0,), (2,), (some_ids(5, 1),))
    cache = SlotCache.allocate(models.config.lm, SLOTS, CAPACITY, models.device, torch.float32)
    before = fused.prefill(rows, cache)
    lm.layers[1].mlp.up_proj.weight.zero_()
    lm.layers[0].attention.v_proj.bias.zero_()
    assert not torch.equal(before, fused.prefill(rows, cache))
