"""Recorded TensorRT-LLM checkpoints of two tiny Qwen2 models, as digests of their tensors.

The models themselves, and the ranges that SmoothQuant was calibrated with, are in `tests/data/trtllm`. The digests
beside them are made from a folder of recorded checkpoints by

    python -m tests.export.trtllm_goldens FOLDER

where FOLDER/MODEL has `hf/`, `calibration.safetensors` and one folder for each conversion. With VIVAVOCE_REFERENCE
set, FOLDER is its `trtllm`, and the tests compare the tensors themselves.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

DATA = Path(__file__).parents[1] / "data" / "trtllm"
DIGESTS = DATA / "digests.json"
DERIVED = frozenset({"embed_positions", "embed_positions_for_gpt_attention", "rotary_inv_freq"})
"""Buffers that the reference writes at times; its loader makes them anew."""


@dataclass(frozen=True)
class Golden:
    """One recorded conversion. ranks: for each file, tensors by name as "dtype shape digest"."""

    model: str
    name: str
    config: dict[str, Any]
    ranks: tuple[dict[str, str], ...]

    @property
    def layout(self) -> str | None:
        """The byte order of weights that are quantised already."""
        return self.name.rpartition("_")[2] if "wo_" in self.name else None


def goldens() -> list[Golden]:
    """All of them."""
    data = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return [
        Golden(model, name, entry["config"], tuple(entry["ranks"]))
        for model, conversions in data.items()
        for name, entry in conversions.items()
    ]


def describe(tensor: Tensor) -> str:
    """Dtype, shape and the SHA-256 of the bytes."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} {hashlib.sha256(raw).hexdigest()}"


def read_rank(path: Path) -> dict[str, Tensor]:
    """All tensors of a file but the derived ones."""
    return {name: tensor for name, tensor in load_file(path).items() if name not in DERIVED}


def _record(folder: Path) -> dict[str, Any]:
    ranks = sorted(folder.glob("rank*.safetensors"), key=lambda path: int(path.stem.removeprefix("rank")))
    return {
        "config": json.loads((folder / "config.json").read_text(encoding="utf-8")),
        "ranks": [{name: describe(tensor) for name, tensor in sorted(read_rank(path).items())} for path in ranks],
    }


def _main(source: Path) -> None:
    digests: dict[str, dict[str, Any]] = {}
    for model in sorted(path for path in source.iterdir() if path.is_dir()):
        (DATA / model.name).mkdir(parents=True, exist_ok=True)
        for name in ("hf/config.json", "hf/model.safetensors", "calibration.safetensors"):
            target = DATA / model.name / name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(model / name, target)
        folders = sorted(path for path in model.iterdir() if path.is_dir() and path.name != "hf")
        digests[model.name] = {folder.name: _record(folder) for folder in folders}
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
