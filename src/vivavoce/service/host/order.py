"""What a server's door asks for: a text, a voice and a manner, as plain values that cross to another process."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recording:
    """A reference recording as it was sent; content: an audio file's bytes; transcript: what it says, "" if unknown."""

    content: bytes
    transcript: str = ""


@dataclass(frozen=True)
class Sampling:
    """How speech tokens are drawn; None: as the model's own configuration says. Limits: `engine.SamplingParams`."""

    top_p: float | None = None
    top_k: int | None = None
    win_size: int | None = None
    tau_r: float | None = None
    min_ratio: float | None = None
    max_ratio: float | None = None


@dataclass(frozen=True)
class SpeechOrder:
    """One request for speech; what is out of its limits is refused when it is asked for.

    text: all of it; None: it arrives piece by piece. voice: a name, a recording, or None for the model's first voice.
    owner: whose voices are seen beside the public ones; "": nobody's. policy: a chunk policy's name, None for
    low_latency. language: whose rules read numbers and dates out ("en", "zh"); None: told from the text.
    """

    text: str | None
    voice: str | Recording | None = None
    owner: str = ""
    mode: str | None = None
    instruct: str | None = None
    speed: float = 1.0
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    policy: str | None = None
    language: str | None = None
