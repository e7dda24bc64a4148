"""The training loop: it learns, ends with its budget, and goes on where a piece ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.loop import Budget, Optimizer, Recipe, train
from vivavoce.errors import InvalidRequest

CPU = torch.device("cpu")


def learn(folder: Path, budget: Budget, rate: float = 0.05) -> tuple[dict[str, Tensor], nn.Linear]:
    """Fit y = sum of x."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    x = torch.randn(64, 4)
    optimizer = Optimizer(model.parameters(), Recipe(rate, warmup_steps=5))

    def body(variant: int) -> dict[str, Tensor]:
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.update(loss)
        return {"loss": loss}

    state = train("toy", body, {"toy": optimizer}, {"toy": model}, budget, folder, device=CPU, averaged="toy")
    return state, model


def test_it_learns_and_averages(tmp_path: Path) -> None:
    state, _ = learn(tmp_path, Budget(steps=200))
    assert torch.allclose(state["weight"], torch.ones(1, 4), atol=0.02)
    entries = [json.loads(line) for line in (tmp_path / "toy.log.jsonl").read_text().splitlines()]
    assert entries[-1]["step"] == 200


def test_pieces_make_the_whole(tmp_path: Path) -> None:
    whole, _ = learn(tmp_path / "whole", Budget(steps=60))
    learn(tmp_path / "pieces", Budget(steps=60, piece_seconds=0.0))  # saves at once, after no step
    learn(tmp_path / "pieces", Budget(steps=60))
    continued, _ = learn(tmp_path / "pieces", Budget(steps=60))  # the budget is spent: nothing changes
    for name, tensor in whole.items():
        assert torch.equal(tensor, continued[name])


def test_the_schedule_rises_and_falls() -> None:
    recipe = Recipe(1.0, warmup_steps=10, final_fraction=0.1)
    assert recipe.rate(0, 0.0) == pytest.approx(0.1)
    assert recipe.rate(9, 0.0) == pytest.approx(1.0)
    assert recipe.rate(1000, 0.5) == pytest.approx(0.55)
    assert recipe.rate(1000, 1.0) == recipe.rate(1000, 2.0) == pytest.approx(0.1)


def test_the_budget_is_whichever_ends_first() -> None:
    assert Budget(seconds=10, steps=100).progress(5, 80) == 0.8
    assert Budget(seconds=10, steps=100).progress(9, 8) == 0.9


@pytest.mark.parametrize("length", [{}, {"piece_seconds": 5.0}, {"steps": 0}, {"seconds": -1.0}])
def test_a_training_without_an_end_is_refused(length: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        Budget(**length)  # type: ignore[arg-type]
