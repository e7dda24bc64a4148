"""Slots with LoRA adapters say what a model with merged weights says, alone and in company."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.adapters import merged, write_adapter
from tests.engine.lm_stage.lm_talk import Ids, finish, request, run_of
from vivavoce.checkpoint.adapter import AdapterWeights, read_adapter
from vivavoce.checkpoint.config import qwen2_of
from vivavoce.engine.lm_stage import LMStage
from vivavoce.models.build import Models
from vivavoce.models.lm.adapters import LoadedAdapter

NAMES = ("wide", "small")


@pytest.fixture
def folders(tmp_path: Path, models: Models) -> dict[str, Path]:
    return {
        "wide": write_adapter(tmp_path / "wide", models.lm, rank=20, alpha=20, seed=1),
        "small": write_adapter(tmp_path / "small", models.lm, rank=4, targets=("q_proj", "v_proj"), seed=2, size=2.0),
    }


def read(models: Models, folder: Path) -> AdapterWeights:
    return read_adapter(folder, qwen2_of(models.config.lm))


def load(stage: LMStage, weights: AdapterWeights) -> LoadedAdapter:
    with torch.inference_mode():
        return stage.add_adapter(weights, stage.lay_adapter(weights))


def spoken(stage: LMStage, models: Models, asked: list[tuple[int, LoadedAdapter | None]], small: bool = False) -> Ids:
    """The ids of some requests that speak together, by their seed."""
    with torch.inference_mode():
        slots, runs = {}, {}
        for seed, adapter in asked:
            one = request(seed, small=small, top_k=None)
            slot = stage.open(one.sampling, one.seed)
            slots[slot], runs[slot] = seed, replace(run_of(models, one), adapter=adapter)
        stage.prefill(runs)
        del runs
        ids = finish(stage, ahead=1)
        for slot in slots:
            stage.close(slot)
        return {slots[slot]: own for slot, own in ids.items()}


def alone(models: Models, seed: int, small: bool = False) -> list[int]:
    return spoken(LMStage(models, slots=8, capacity=200), models, [(seed, None)], small)[seed]


def check_company(models: Models, folders: dict[str, Path], stage: LMStage, small: bool = False) -> None:
    loaded = {name: load(stage, read(models, folder)) for name, folder in folders.items()}
    asked = [(1, loaded["wide"]), (2, None), (3, loaded["small"])]
    together = spoken(stage, models, asked, small)
    merged_into = {name: replace(models, lm=merged(models.lm, folder)) for name, folder in folders.items()}
    assert together[1] == alone(merged_into["wide"], 1, small) != alone(models, 1, small)
    assert together[3] == alone(merged_into["small"], 3, small) != alone(models, 3, small)
    assert together[2] == alone(models, 2, small)
    for seed, adapter in asked[1 if small else 0 : 2]:
        assert spoken(stage, models, [(seed, adapter)], small)[seed] == together[seed]


@pytest.mark.parametrize("owner", ["models", "models_v3"])
def test_ids_are_those_of_merged_weights(tmp_path: Path, owner: str, request: pytest.FixtureRequest) -> None:
    models: Models = request.getfixturevalue(owner)
    folders = {
        "wide": write_adapter(tmp_path / "wide", models.lm, rank=20, alpha=20, seed=1),
        "small": write_adapter(tmp_path / "small", models.lm, rank=4, targets=("q_proj", "v_proj"), seed=2, size=2.0),
    }
    check_company(models, folders, LMStage(models, slots=8, capacity=200, adapters=2))


def test_rows_without_an_adapter_keep_their_bits(models: Models, folders: dict[str, Path], monkeypatch) -> None:
    """Scores of a request beside one that has an adapter, and beside the same one without it."""
    seen: list[list[torch.Tensor]] = []

    def chooser(scores: torch.Tensor, state: object) -> torch.Tensor:
        seen[-1].append(scores[:1].clone())
        return torch.zeros(len(scores), dtype=torch.int64)

    for adapted in (False, True):
        seen.append([])
        stage = LMStage(models, slots=8, capacity=200, chooser=chooser, adapters=1)
        adapter = load(stage, read(models, folders["wide"])) if adapted else None
        spoken(stage, models, [(2, None), (3, adapter)])
    assert len(seen[0]) > 5
    assert all(torch.equal(plain, beside) for plain, beside in zip(*seen, strict=True))


def test_a_place_is_free_when_the_last_run_is_gone(models: Models, folders: dict[str, Path]) -> None:
    stage = LMStage(models, slots=4, capacity=200, adapters=1)
    loaded = load(stage, read(models, folders["wide"]))
    assert stage.adapter_places == 0
    one = request(1)
    with torch.inference_mode():
        slot = stage.open(one.sampling, 0)
        stage.prefill({slot: replace(run_of(models, one), adapter=loaded)})
        del loaded
        gc.collect()
        assert stage.adapter_places == 0
        stage.decode()
        stage.close(slot)
        while stage.in_flight:
            stage.collect(wait=True)
    gc.collect()
    assert stage.adapter_places == 1


@pytest.mark.slow
class TestKernels:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton")
        from vivavoce_kernels.lm_attention import SplitK

        monkeypatch.setattr("vivavoce.models.lm.fused.split_k_for", lambda _: SplitK(32, 1, 1, 2))
        monkeypatch.setattr("vivavoce.engine.lm_stage.graphed.ROWS", (16, 32, 48, 96, 160))

    def test_ids_are_those_of_merged_weights(self, models: Models, folders: dict[str, Path], quick_kernels) -> None:
        stage = LMStage(models, slots=4, capacity=96, kernels=True, adapters=2, adapter_rank=20)
        check_company(models, folders, stage, small=True)
        ways = {key[3] for key in stage._steps.captured}  # type: ignore[union-attr]
        assert ways == {False, True}

    def test_launches_without_adapters_are_the_plain_ones(self, models: Models, quick_kernels) -> None:
        stage = LMStage(models, slots=4, capacity=96, kernels=True, adapters=2, adapter_rank=16)
        spoken(stage, models, [(1, None), (2, None)], small=True)
        assert not any(key[3] for key in stage._steps.captured)  # type: ignore[union-attr]

    def test_deterministic_launches_all_add_adapters(self, models: Models, quick_kernels) -> None:
        stage = LMStage(models, slots=2, capacity=96, kernels=True, deterministic=True, adapters=1, adapter_rank=16)
        spoken(stage, models, [(1, None)], small=True)
        assert all(key[3] for key in stage._steps.captured)  # type: ignore[union-attr]

    def test_a_place_that_is_filled_again_has_the_new_adapter(
        self, models: Models, folders: dict[str, Path], quick_kernels
    ) -> None:
        stage = LMStage(models, slots=2, capacity=96, kernels=True, adapters=1, adapter_rank=20)
        weights = {name: read(models, folders[name]) for name in NAMES}
        said = {}
        for name in NAMES:
            loaded = load(stage, weights[name])
            said[name] = spoken(stage, models, [(3, loaded)], small=True)[3]
            del loaded
            gc.collect()
            assert stage.adapter_places == 1
        changed = replace(models, lm=merged(models.lm, folders["small"]))
        assert said["small"] == alone(changed, 3, small=True) != said["wide"]


@pytest.fixture(scope="module")
def quick_kernels():
    from tests.fast_flow import quick_interpreter

    with quick_interpreter():
        yield
