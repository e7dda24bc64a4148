"""The language model; its serving form is the model, and a sequence's bits do not depend on its company."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.plain.lm import LMPrompt, prompt_rows
from vivavoce.models import layout as products
from vivavoce.models.lm.slot_lm import PackedRows, SlotCache, SlotLM, fewest_rows, joined

CPU = torch.device("cpu")


def some_rows(lm, count, seed=0):
    return torch.randn(count, lm.config.hidden_size, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_steps_behind_a_past_equal_one_pass(models):
    lm, rows = models.lm, some_rows(models.lm, 23)[None]
    past = []
    parts = [lm(piece, past) for piece in rows.split([9, 1, 1, 5, 7], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), lm(rows), atol=1e-5, rtol=0)


@torch.inference_mode()
def test_causality(models):
    rows = some_rows(models.lm, 12)[None]
    changed = rows.clone()
    changed[:, 7:] += 1
    before, after = models.lm(rows), models.lm(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@torch.inference_mode()
def test_prompt_order(models):
    lm = models.lm
    rows = prompt_rows(lm, LMPrompt(text=(5, 6), prompt_text=(4,), prompt_speech=(100, 200)))
    wanted = torch.cat(
        (
            lm.control_embedding.weight[:1],
            lm.text_embedding.weight[4:7],
            lm.control_embedding.weight[1:2],
            lm.speech_embedding.weight[[100, 200]],
        )
    )
    assert torch.equal(rows, wanted)


def test_it_can_be_trained(babble):
    from vivavoce.models.build import build_models

    lm = build_models(babble, CPU).lm.requires_grad_(True)
    hidden = lm(some_rows(lm, 10)[None])
    lm.log_probabilities(hidden)[0, :, 3].sum().neg().backward()
    untouched = {"text_embedding.weight", "speech_embedding.weight", "control_embedding.weight"}
    without = {name for name, parameter in lm.named_parameters() if parameter.grad is None}
    assert without == untouched


CAPACITY = 640


def packed(slots: Sequence[int], starts: Sequence[int], ids: Sequence[Sequence[int]], total: int) -> PackedRows:
    """Speech rows of some sequences, padded to `total` rows."""
    longest = -(-max(len(one) for one in ids) // 8) * 8
    rows = [
        (2, one, slot, start + place, number * longest + place)
        for number, (slot, start, own) in enumerate(zip(slots, starts, ids, strict=True))
        for place, one in enumerate(own)
    ]
    rows += [(0, 0, 0, CAPACITY - 1, 0)] * (total - len(rows))
    kinds, numbers, places, positions, unpadded = torch.tensor(rows).T
    firsts = [sum(len(one) for one in ids[:number]) for number in range(len(ids))]
    padded = [
        [first + min(place, len(own) - 1) for place in range(longest)] for first, own in zip(firsts, ids, strict=True)
    ]
    last = [first + len(own) - 1 for first, own in zip(firsts, ids, strict=True)]
    arrays = (kinds, numbers, places, positions, unpadded, slots, starts, padded, last)
    return PackedRows(*(torch.as_tensor(one) for one in arrays))


def some_ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def cache_of(lm: SlotLM, slots: int) -> SlotCache:
    return SlotCache.allocate(lm.config, slots, CAPACITY, CPU, torch.float32)


@torch.inference_mode()
def test_packed_prefills_and_steps_are_one_pass(models):
    lm, plain = SlotLM(models.lm, CAPACITY), models.lm
    cache = cache_of(lm, 3)
    first, second = some_ids(21, 0), some_ids(5, 1)
    scores = lm.prefill(packed((2, 0), (0, 0), (first[:13], second), 24), cache, 128)
    scores = torch.stack((lm.prefill(packed((2,), (13,), (first[13:20],), 8), cache, 128)[0], scores[1]))
    stepped = lm.step(torch.tensor([7, 0, first[20]]), torch.tensor([5, 0, 20]), cache, 128)

    def whole(ids: list[int]) -> Tensor:
        return plain.log_probabilities(plain(plain.speech_embedding(torch.tensor(ids))[None])[0, -1])

    for got, ids in (
        (scores[0], first[:20]),
        (scores[1], second),
        (stepped[0], [*second, 7]),
        (stepped[2], first),
    ):
        torch.testing.assert_close(got, whole(ids), atol=2e-5, rtol=0)


@pytest.mark.parametrize("company", [1, 2, 4, 7, 12, 31])
@torch.inference_mode()
def test_the_bits_of_a_sequence_do_not_depend_on_its_company(models, company):
    lm, own = SlotLM(models.lm, CAPACITY), some_ids(37, 0)
    results = []
    for others in (0, company):
        cache = cache_of(lm, others + 1)
        ids = [own, *(some_ids(11 + 9 * place, place) for place in range(others))]
        total = -(-sum(map(len, ids)) // 8) * 8
        reach = 128 if not others else 512
        scores = [lm.prefill(packed(range(others + 1), [0] * (others + 1), ids, total), cache, reach)[0]]
        for step in range(3):
            positions = torch.tensor([len(one) + step for one in ids])
            scores.append(lm.step(positions * 3, positions, cache, reach)[0])
        results.append(torch.stack(scores))
    assert torch.equal(*results)


@pytest.mark.parametrize("packs", [False, True])
@torch.inference_mode()
def test_joined_layers_compute_what_they_did(monkeypatch, packs):
    monkeypatch.setattr(products, "_packing_works", lambda: packs and torch.backends.mkldnn.is_available())
    layers = [nn.Linear(48, out).requires_grad_(False) for out in (32, 16, 8)]
    before = copy.deepcopy([layer.state_dict() for layer in layers])
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(0))
    wanted = torch.cat([layer(x) for layer in layers], dim=-1)
    for product in (joined(layers), joined(layers)):
        torch.testing.assert_close(product(x), wanted, atol=1e-5, rtol=0)
    for layer, state in zip(layers, before, strict=True):
        assert all(torch.equal(layer.state_dict()[name], value) for name, value in state.items())
    torch.testing.assert_close(torch.cat([layer(x) for layer in layers], dim=-1), wanted, atol=1e-5, rtol=0)


def test_joined_weights_are_not_held_twice(monkeypatch):
    monkeypatch.setattr(products, "_packing_works", lambda: False)
    layers = [nn.Linear(8, 4, bias=False) for _ in range(2)]
    product = joined(layers)
    layers[1].weight.data.zero_()
    again = joined(layers)
    x = torch.ones(1, 8)
    assert torch.equal(product(x), again(x))
    assert torch.equal(product(x)[:, 4:], torch.zeros(1, 4))


@pytest.mark.parametrize(("bad", "step"), [({1, 2, 3}, 4), (set(), 1), ({1}, 2), ({1, 2, 3, 5, 6, 7, 4}, 8)])
def test_rows_are_padded_as_far_as_the_library_wants_it(bad, step):
    def product(x: Tensor) -> Tensor:
        return x + 1e-6 if len(x) in bad else x * 1

    assert fewest_rows([product], [16], CPU, torch.float32) == step


def test_memory_of_a_host_is_given_when_it_is_touched(models):
    before = resident_bytes()
    memory = SlotCache.allocate(models.config.lm, 256, 5_120, CPU, torch.float32).memory
    assert memory.nbytes > 256 << 20
    memory[1, 1, 31, 0, 5:9] = 1
    assert memory[1, 1, 31].sum() == 4 * models.config.lm.head_dim
    assert not memory[0, 0, :2].any()
    assert resident_bytes() - before < 64 << 20


def resident_bytes():
    """Of this process."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell it")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
