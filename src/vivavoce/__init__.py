"""vivavoce: text-to-speech for the CosyVoice model family.

    import vivavoce

    tts = vivavoce.load("CosyVoice2-0.5B")
    tts.speak("Hello.", voice="me.wav", transcript="What I said there.").save("hello.wav")

The names below are imported when they are first used: `vivavoce --help` need not wait for torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from vivavoce.version import __version__ as __version__

# OpenMP's threads busy-wait for one another, which made speech six times slower on a machine with other load. This
# shorter wait makes an idle machine a few per cent slower. OpenMP reads the variable once, when torch is imported.
if not ("torch" in sys.modules or {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"} & os.environ.keys()):
    os.environ["GOMP_SPINCOUNT"] = "10000"

# onnxruntime ≥ 1.31 writes a device id into the user's cache folder and sends events to its maker. It reads this
# variable when it is imported, and this line always runs before that. Child processes inherit the variable.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# oneDNN, and torch's layer above it in each thread, keep compiled primitives of up to 1,024 batch shapes: over 1 GB
# after the first minutes of a book. They read these limits at their first computation; a stream has far fewer shapes.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")

TYPE_CHECKING = False  # not imported: `python -m vivavoce` would first look for `typing` in the current folder
if TYPE_CHECKING:
    from typing import Any

    from vivavoce.api import ChunkStream as ChunkStream
    from vivavoce.api import Vivavoce as Vivavoce
    from vivavoce.api import load as load
    from vivavoce.engine.chunk_policy import ChunkPolicy as ChunkPolicy
    from vivavoce.engine.request import AudioChunk as AudioChunk
    from vivavoce.engine.request import SamplingParams as SamplingParams
    from vivavoce.engine.request import Word as Word
    from vivavoce.engine.settings import EngineSettings as EngineSettings
    from vivavoce.errors import VivavoceError as VivavoceError
    from vivavoce.frontend.audio.samples import Audio as Audio
    from vivavoce.frontend.speech import Delivery as Delivery
    from vivavoce.frontend.speech import Mark as Mark
    from vivavoce.frontend.speech import Mode as Mode
    from vivavoce.frontend.speech_result import Speech as Speech
    from vivavoce.frontend.speech_result import Timings as Timings
    from vivavoce.frontend.subtitles import to_srt as to_srt
    from vivavoce.frontend.subtitles import to_vtt as to_vtt
    from vivavoce.frontend.voices.consent import Consent as Consent
    from vivavoce.frontend.voices.voice import Voice as Voice


_MODULES = {
    "vivavoce.api": ("ChunkStream", "Vivavoce", "load"),
    "vivavoce.engine.chunk_policy": ("ChunkPolicy",),
    "vivavoce.engine.request": ("AudioChunk", "SamplingParams", "Word"),
    "vivavoce.engine.settings": ("EngineSettings",),
    "vivavoce.errors": ("VivavoceError",),
    "vivavoce.frontend.audio.samples": ("Audio",),
    "vivavoce.frontend.speech": ("Delivery", "Mark", "Mode"),
    "vivavoce.frontend.speech_result": ("Speech", "Timings"),
    "vivavoce.frontend.subtitles": ("to_srt", "to_vtt"),
    "vivavoce.frontend.voices.consent": ("Consent",),
    "vivavoce.frontend.voices.voice": ("Voice",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vivavoce' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
