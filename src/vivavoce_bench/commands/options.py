"""Options that several commands share, and the voices that they name."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from vivavoce.cli.flags import shared
from vivavoce.errors import InvalidRequest

T = TypeVar("T")

TranscriptsOption = Annotated[
    list[str] | None, shared("Transcript of a recording; one per recording, in order.", "TEXT", "--transcript")
]
TokensOption = Annotated[
    int | None, shared("Exact length of the speech in tokens (25 per second; CosyVoice 1: 50).", "NUMBER", "--tokens")
]
JsonFileOption = Annotated[str | None, shared("Write the results as JSON; - is stdout.", "FILE|-", "--json")]
PlotOption = Annotated[Path | None, shared("Draw a PNG file; needs vivavoce[eval].", "FILE", "--plot")]


def named_voices(
    names: Sequence[str], transcripts: Sequence[str], known: Sequence[str], resolve: Callable[[Any, str], T]
) -> dict[str, T]:
    """Map each name or recording to its voice.

    transcripts: one per recording in `names`, in their order, or none; known: names of stored and built-in voices;
    resolve: (name or recording, transcript) → voice.
    """
    recordings = [name for name in names if unicodedata.normalize("NFC", name) not in known]
    if transcripts and len(transcripts) != len(recordings):
        raise InvalidRequest(
            f"transcript: {len(transcripts)} given for {len(recordings)} recordings among the voices; give one "
            "per recording, in order, or none"
        )
    said = dict(zip(recordings, transcripts, strict=True)) if transcripts else {}
    return {name: resolve(name, said.get(name, "")) for name in names}
