"""A folder of goldens: what it holds, and the checkpoints that its maker builds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vivavoce.api import Vivavoce
from vivavoce.engine.engine import Engine
from vivavoce.engine.lm_stage.slots import Chooser
from vivavoce.engine.settings import EngineSettings
from vivavoce.frontend.front_end import load_front_end
from vivavoce.models.build import Models, build_models

STAGES = ("audio", "text", "modes", "llm", "flow", "hift", "e2e", "full")


class Arrays:
    """The arrays of one npz; remembers which were asked for, so that none is passed over in silence."""

    def __init__(self, path: Path) -> None:
        self._file = np.load(path) if path.is_file() else None
        self.names = frozenset(self._file.files) if self._file is not None else frozenset()
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> np.ndarray:
        self.used.add(name)
        if self._file is None:
            raise KeyError(f"{name}: there is no npz beside the json")
        return self._file[name]

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self[name], order="C"))

    def ids(self, name: str) -> tuple[int, ...]:
        return tuple(self[name].reshape(-1).tolist())

    def under(self, prefix: str) -> list[str]:
        return sorted(name for name in self.names if name.startswith(prefix))


@dataclass
class Golden:
    """One json and its arrays."""

    path: Path
    meta: dict[str, Any]
    arrays: Arrays

    @property
    def stage(self) -> str:
        return self.path.stem

    @property
    def label(self) -> str:
        return f"{self.path.parent.name}/{self.stage}"

    @cached_property
    def checkpoint(self) -> tuple[str, int] | None:
        """(manifest, seed) of the weights behind it; None if it depends on none."""
        if "manifest" in self.meta:
            return self.meta["manifest"], self.meta["seed"]
        if "tokenizer" in self.meta:
            manifest, seed = self.meta["tokenizer"].rsplit("-", 1)
            return manifest, int(seed)
        return None


class Reference:
    """The folder, and a place to build checkpoints in."""

    def __init__(self, root: Path, work: Path) -> None:
        self.root, self._work = root, work
        self._loaded: tuple[tuple[str, int], Models] | None = None

    def goldens(self) -> Iterator[Golden]:
        """All goldens, those of one checkpoint together."""
        found = []
        for path in sorted(self.root.glob("goldens/*/*.json")):
            golden = Golden(path, json.loads(path.read_text(encoding="utf-8")), Arrays(path.with_suffix(".npz")))
            found.append(golden)
        yield from sorted(found, key=lambda g: (g.path.parent.name, STAGES.index(g.stage) if g.stage in STAGES else 99))

    def generation(self, manifest: str) -> str:
        return self._manifest(manifest)["generation"]

    def missing(self, manifest: str) -> str | None:
        """Why the manifest's checkpoint cannot be built here, if so."""
        return None if self._manifest_path(manifest).is_file() else f"there is no manifest {manifest}"

    def folder(self, manifest: str, seed: int) -> Path:
        """The checkpoint's folder, built at first use; the one before it makes room."""
        folder = self._work / f"{manifest}-{seed}"
        if not folder.is_dir():
            command = [sys.executable, str(self.root / "make_checkpoint.py"), str(self._manifest_path(manifest))]
            subprocess.run([*command, str(folder), "--seed", str(seed)], check=True, capture_output=True)
        return folder

    def models(self, manifest: str, seed: int) -> Models:
        if self._loaded is None or self._loaded[0] != (manifest, seed):
            self._loaded = None
            self._loaded = (manifest, seed), build_models(self.folder(manifest, seed), torch.device("cpu"))
        return self._loaded[1]

    @contextmanager
    def synthesizer(self, manifest: str, seed: int, chooser: Chooser | None = None) -> Iterator[Vivavoce]:
        """The whole program over that checkpoint, its engine under the official rules and without source noise."""
        models = self.models(manifest, seed)
        # Official streams keep no state of the flow.
        settings = EngineSettings(slots=4, state_bytes=0)
        with Engine(models, settings, official=True, chooser=chooser, source_noise=False) as engine:
            yield Vivavoce(engine, load_front_end(self.folder(manifest, seed), models.config))

    def wavs(self) -> list[Path]:
        return sorted((self.root / "wavs").glob("*.wav"))

    def wav(self, name: str) -> Path:
        return self.root / "wavs" / name

    def _manifest_path(self, manifest: str) -> Path:
        return self.root / "manifests" / f"{manifest}.json"

    def _manifest(self, manifest: str) -> dict[str, Any]:
        return json.loads(self._manifest_path(manifest).read_text(encoding="utf-8"))
