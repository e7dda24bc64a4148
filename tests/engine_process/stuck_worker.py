"""The engine's process, in which something hangs as long as a file is there: `stuck_worker.py WHAT FILE FD`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vivavoce.engine_process import model_service, process
from vivavoce.frontend.session import RequestSession
from vivavoce.frontend.text.official import WHOLE_CHARS
from vivavoce.frontend.voices.extract import VoiceExtractor
from vivavoce.frontend.voices.folder_store import FolderStore
from vivavoce.frontend.voices.voice import Voice

BUILT_IN = "calm"
STORE_S = 1.0


def main() -> None:
    """store: all that it is asked; text, long text: what is to be read; extraction: of recordings; nothing."""
    what, file = sys.argv[1], Path(sys.argv[2])
    sys.argv[1:] = sys.argv[3:]

    def hanging(owner: type, name: str, hangs: Callable[..., bool] = lambda *given, **named: True) -> None:
        method = getattr(owner, name)

        def hang(*given: Any, **named: Any) -> Any:
            while hangs(*given, **named) and file.exists():
                time.sleep(0.02)
            return method(*given, **named)

        setattr(owner, name, hang)

    model_service.built_in_voices = lambda folder: {BUILT_IN: Voice(torch.zeros(192), "", BUILT_IN)}
    model_service.STORE_S, model_service.CHECK_S = STORE_S, STORE_S / 4
    if what == "store":
        for name in ("summaries", "load", "save", "remove", "version", "state"):
            hanging(FolderStore, name)
    elif what == "text":
        hanging(RequestSession, "start")
    elif what == "long text":
        hanging(RequestSession, "start", lambda session, text, *_: len(text) > WHOLE_CHARS)
    elif what == "extraction":
        hanging(VoiceExtractor, "extract")
    process.main()


if __name__ == "__main__":
    main()
