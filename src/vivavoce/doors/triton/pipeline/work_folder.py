"""The pipeline's folder: where each stage puts what it makes, and the note that it was done."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce.errors import InvalidRequest

STAGES = ("download", "convert", "repository", "server", "http", "grpc", "offline")
"""By their numbers."""


@dataclass(frozen=True)
class WorkFolder:
    """All places below one folder, which is absolute."""

    root: Path

    @property
    def model(self) -> Path:
        """The model with other speakers than its own: links, and the speakers' file."""
        return self.root / "model"

    @property
    def merged(self) -> Path:
        """The merged language model in Hugging Face's form."""
        return self.root / "llm_hf"

    @property
    def checkpoint(self) -> Path:
        """The language model as TensorRT-LLM's builder reads it."""
        return self.root / "trtllm_checkpoint"

    @property
    def engine(self) -> Path:
        """The engine that `trtllm-build` makes."""
        return self.root / "trtllm_engine"

    @property
    def repository(self) -> Path:
        """The model repository."""
        return self.root / "model_repo"

    @property
    def server_log(self) -> Path:
        """What a server in the background says."""
        return self.root / "server.log"

    def results(self, stage: int) -> Path:
        """Audio and reports of one stage."""
        return self.root / "results" / STAGES[stage]

    def note(self, stage: int) -> Path:
        """What a stage made, of what, and when."""
        return self.root / "stages" / f"{stage}-{STAGES[stage]}.json"

    def made(self, stage: int) -> dict[str, Any]:
        """What an earlier stage made.

        Raises:
            InvalidRequest: it was not done in this folder.
        """
        note = self.read(stage)
        if note is None:
            raise InvalidRequest(
                f"stage: {stage} ({STAGES[stage]}) was not done in {self.root}; begin there, with --stage {stage}"
            )
        return dict(note["made"])

    def read(self, stage: int) -> dict[str, Any] | None:
        """A stage's note; None: it was not done, or not to its end."""
        try:
            note = json.loads(self.note(stage).read_text(encoding="utf-8"))
            return {"inputs": note["inputs"], "made": note["made"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, stage: int, inputs: Mapping[str, Any], made: Mapping[str, Any], seconds: float) -> None:
        """Note that a stage was done, in one step.

        Raises:
            OSError: the place cannot be written.
        """
        path = self.note(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        note = {
            "stage": stage,
            "name": STAGES[stage],
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 3),
            "inputs": dict(inputs),
            "made": dict(made),
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(note, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(new, path)
