"""vivavoce: text-to-speech for the CosyVoice model family.

    import vivavoce

    tts = vivavoce.load("CosyVoice2-0.5B")
    tts.speak("Hello.", voice="me.wav", prompt_text="What I said there.").save("hello.wav")

The names below are imported when they are first used: `vivavoce --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vivavoce.version import __version__ as __version__

if TYPE_CHECKING:
    from vivavoce.doors.python import Vivavoce, load
    from vivavoce.engine.chunk_policy import ChunkPolicy
    from vivavoce.engine.request import AudioChunk, SamplingParams
    from vivavoce.errors import VivavoceError
    from vivavoce.service.audio.types import Audio
    from vivavoce.service.modes import Mode
    from vivavoce.service.synthesizer import Speech
    from vivavoce.service.voices.voice import Voice


_HOMES = {
    "Audio": "vivavoce.service.audio.types",
    "AudioChunk": "vivavoce.engine.request",
    "ChunkPolicy": "vivavoce.engine.chunk_policy",
    "Mode": "vivavoce.service.modes",
    "SamplingParams": "vivavoce.engine.request",
    "Speech": "vivavoce.service.synthesizer",
    "Vivavoce": "vivavoce.doors.python",
    "VivavoceError": "vivavoce.errors",
    "Voice": "vivavoce.service.voices.voice",
    "load": "vivavoce.doors.python",
}

__all__ = [
    "Audio",
    "AudioChunk",
    "ChunkPolicy",
    "Mode",
    "SamplingParams",
    "Speech",
    "Vivavoce",
    "VivavoceError",
    "Voice",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vivavoce' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
