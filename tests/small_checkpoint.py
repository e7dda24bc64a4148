"""Random checkpoints smaller than the one that the program makes for itself: a quarter of its work, in two layers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import CARD
from vivavoce_bench.random_checkpoint import TINY, make_babble_checkpoint

LAYERS = {"lm_layers": 2, "encoder_up_blocks": 2, "unet_blocks": 1, "unet_mid_blocks": 1, "dit_blocks": 2}
SMALL = {generation: replace(sizes, unet_width=32, **LAYERS) for generation, sizes in TINY.items()}
FLOW_STEPS = 4


def small_checkpoint(folder: Path, generation: Generation = Generation.V2, *, seed: int = 0) -> Path:
    """Its card says four steps of the flow instead of ten."""
    make_babble_checkpoint(folder, generation, seed=seed, sizes=SMALL)
    card = folder / CARD
    told = json.loads(card.read_text(encoding="utf-8"))
    card.write_text(json.dumps({**told, "flow_steps": FLOW_STEPS}), encoding="utf-8")
    return folder
