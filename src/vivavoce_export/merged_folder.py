"""The merged language model for other runtimes. It is made once and cached beside the downloaded models."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.known_models import models_home
from vivavoce.checkpoint.weights import find_part
from vivavoce.files import locked
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_export.hf_folder import export_hf


def merged_folder(folder: Path, dtype: torch.dtype, variant: str | None = None) -> Path:
    """Return the merged folder of an official folder's language model; make it if it is missing.

    The name is a key of the dtype, and of the weights file's path, size and change time. Errors as in `export_hf`.
    """
    weights = find_part(folder, "llm", variant).resolve()
    status, name = weights.stat(), str(dtype).removeprefix("torch.")
    mark = hashlib.sha256(f"{weights}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()[:16]
    target = models_home().parent / "merged" / f"{mark}-{name}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f"{target.name}.lock")):
        if not target.is_dir():
            tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
            export_hf(folder, target, tokenizer.to_json(), dtype=name, variant=variant)
    return target
