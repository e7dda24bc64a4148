"""vivavoce: text-to-speech for the CosyVoice model family.

    import vivavoce

    tts = vivavoce.load("CosyVoice2-0.5B")
    tts.speak("Hello.", voice="me.wav", prompt_text="What I said there.").save("hello.wav")

The names below are imported when they are first used: `vivavoce --help` need not wait for torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from vivavoce.version import __version__ as __version__

# OpenMP's threads spin while they wait for one another: on a machine with other work, speech took six times as long.
# Spinning briefly and then sleeping costs some per cent on an idle one. Read once, when torch is imported: here is the
# last place that all programs pass before.
if not ("torch" in sys.modules or {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"} & os.environ.keys()):
    os.environ["GOMP_SPINCOUNT"] = "10000"

TYPE_CHECKING = False  # for type checkers: `python -m vivavoce` would look for `typing` in the current folder first
if TYPE_CHECKING:
    from typing import Any

    from vivavoce.engine.chunk_policy import ChunkPolicy as ChunkPolicy
    from vivavoce.engine.request import AudioChunk as AudioChunk
    from vivavoce.engine.request import SamplingParams as SamplingParams
    from vivavoce.entrypoints.python import Vivavoce as Vivavoce
    from vivavoce.entrypoints.python import load as load
    from vivavoce.errors import VivavoceError as VivavoceError
    from vivavoce.service.audio.samples import Audio as Audio
    from vivavoce.service.speech import Mode as Mode
    from vivavoce.service.synthesizer import Speech as Speech
    from vivavoce.service.voices.voice import Voice as Voice


_HOMES = {
    "Audio": "vivavoce.service.audio.samples",
    "AudioChunk": "vivavoce.engine.request",
    "ChunkPolicy": "vivavoce.engine.chunk_policy",
    "Mode": "vivavoce.service.speech",
    "SamplingParams": "vivavoce.engine.request",
    "Speech": "vivavoce.service.synthesizer",
    "Vivavoce": "vivavoce.entrypoints.python",
    "VivavoceError": "vivavoce.errors",
    "Voice": "vivavoce.service.voices.voice",
    "load": "vivavoce.entrypoints.python",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vivavoce' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
