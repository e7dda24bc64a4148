"""LoRA adapters of the plain steps: an adapter on the device, and the rows of a pass that have one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.adapter import AdapterWeights
from vivavoce.checkpoint.config import LMConfig
from vivavoce.engine.device import upload
from vivavoce.engine.lm_stage.slots import DecodeRun
from vivavoce.models.lm.adapters import AdaptedRows, Layers, LoadedAdapter, pairs_of, products_of
from vivavoce.models.lm.slot_lm import SAFE_ROWS


def layers_of(weights: AdapterWeights, laid: Tensor, config: LMConfig) -> Layers:
    """The pairs of the products that an adapter changes, as views of its row of memory."""
    changed = products_of(weights)
    return [{product: layer[product] for product in changed} for layer in pairs_of(laid, config, weights.rank)]


def adapted_rows(rows: Iterable[tuple[DecodeRun | None, range]], device: torch.device) -> dict[str, Any]:
    """The keyword of a pass over the rows of some runs; none where no run has an adapter."""
    by_adapter: dict[LoadedAdapter, list[int]] = {}
    for run, own in rows:
        if run is not None and run.adapter is not None:
            by_adapter.setdefault(run.adapter, []).extend(own)
    if not by_adapter:
        return {}
    # Rows are repeated up to a number at which a row's bits do not depend on the others.
    whole = [np.array(rows + rows[-1:] * (-len(rows) % SAFE_ROWS)) for rows in by_adapter.values()]
    layers = (one.layers for one in by_adapter)
    return {"adapted": AdaptedRows(list(zip(layers, upload(whole, device), strict=True)))}
