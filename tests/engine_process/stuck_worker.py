"""The engine's process; what a file in the folder names hangs while the file is there: `stuck_worker.py FOLDER FD`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vivavoce.engine_process import model_service, process
from vivavoce.frontend.session import RequestSession
from vivavoce.frontend.voices.extract import VoiceExtractor
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.voice import Voice
from vivavoce_textnorm import MAX_BLOCK_CHARS

BUILT_IN = "calm"
STORE_S = 1.0


def main() -> None:
    """store: all that it is asked; text, long text: what is to be read; extraction: of recordings."""
    folder = Path(sys.argv[1])
    sys.argv[1:] = sys.argv[2:]

    def hanging(what: str, owner: type, name: str, hangs: Callable[..., bool] = lambda *given, **named: True) -> None:
        method, cause = getattr(owner, name), folder / what

        def hang(*given: Any, **named: Any) -> Any:
            while hangs(*given, **named) and cause.exists():
                time.sleep(0.02)
            return method(*given, **named)

        setattr(owner, name, hang)

    model_service.built_in_voices = lambda folder: {BUILT_IN: Voice(torch.zeros(192), "", BUILT_IN)}
    model_service.STORE_S, model_service.CHECK_S = STORE_S, STORE_S / 4
    for name in ("summaries", "load", "save", "remove", "version", "state"):
        hanging("store", FolderStore, name)
    hanging("text", RequestSession, "start")
    hanging(
        "long text",
        RequestSession,
        "start",
        lambda session, text, *_: isinstance(text, str) and len(text) > MAX_BLOCK_CHARS,
    )
    hanging("extraction", VoiceExtractor, "extract")
    process.main()


if __name__ == "__main__":
    main()
