"""The training loop learns, ends with its budget and goes on where a piece ended; what no graph can hold is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.training.capturable import uncapturable
from vivavoce.errors import InvalidRequest
from vivavoce_training.loop import Budget, Optimizer, Recipe, TrainingStep, train

CPU = torch.device("cpu")


class Toy(TrainingStep):
    """Fits y = sum of x."""

    def __init__(self, width: int = 4) -> None:
        torch.manual_seed(0)
        model = nn.Linear(width, 1)
        self.x, self.modules = torch.randn(64, width), {"toy": model}
        self.optimizers = {"toy": Optimizer(model.parameters(), Recipe(0.05, warmup_steps=5))}

    def __call__(self, variant: int) -> dict[str, Tensor]:
        loss = (self.modules["toy"](self.x) - self.x.sum(1, keepdim=True)).square().mean()
        self.optimizers["toy"].update(loss)
        return {"loss": loss}


def learn(folder: Path, budget: Budget) -> dict[str, Tensor]:
    return train("toy", Toy(), budget, folder, device=CPU)


def test_it_learns_and_averages(tmp_path: Path) -> None:
    state = learn(tmp_path, Budget(steps=200))
    assert torch.allclose(state["weight"], torch.ones(1, 4), atol=0.02)
    entries = [json.loads(line) for line in (tmp_path / "toy.log.jsonl").read_text().splitlines()]
    assert entries[-1]["step"] == 200


def test_pieces_make_the_whole(tmp_path: Path) -> None:
    whole = learn(tmp_path / "whole", Budget(steps=60))
    learn(tmp_path / "pieces", Budget(steps=60, piece_seconds=0.0))  # saves at once, after no step
    learn(tmp_path / "pieces", Budget(steps=60))
    continued = learn(tmp_path / "pieces", Budget(steps=60))  # the budget is spent: nothing changes
    for name, tensor in whole.items():
        assert torch.equal(tensor, continued[name])


def test_another_model_does_not_go_on_from_the_state(tmp_path: Path) -> None:
    learn(tmp_path, Budget(steps=2))
    with pytest.raises(InvalidRequest, match=r"toy\.state\.pt is of a model of other sizes; name a new folder"):
        train("toy", Toy(width=5), Budget(steps=4), tmp_path, device=CPU)


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


HAZARDS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "branch": lambda x: 1 if x.sum() > 0 else 0,
    "boolean index": lambda x: x[x > 0],
    "constant": lambda x: x + torch.tensor([1.0]),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_hazards_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    assert uncapturable(lambda variant: HAZARDS[name](x), 0, monkeypatch)


def test_plain_arithmetic_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    body = lambda variant: torch.where(x > 0, 2 * x + torch.rand_like(x), 1.0)[torch.arange(2)]  # noqa: E731
    assert uncapturable(body, 0, monkeypatch) == []
