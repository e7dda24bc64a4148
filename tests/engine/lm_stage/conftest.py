"""Stages run in inference mode, as the engine's thread does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield
