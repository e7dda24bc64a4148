from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.training.capturable import uncapturable

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
