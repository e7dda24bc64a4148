"""Recordings to test a trained model by: speakers and sentences that no training knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivavoce.frontend.audio.encode import write_audio
from vivavoce_training.data.store import SAMPLE_RATE, Speaker

PROMPTS = (
    "The harbor was quiet before dawn, and the old boats moved slowly.",
    "Several children were playing in the park behind the school.",
)
"""The texts of the cloned recordings, by turns."""

Record = Callable[[Speaker, str], NDArray[np.float32]]  # (speaker, text) → samples at 24 kHz


def write_test_set(folder: Path, sentences: Sequence[str], speakers: Sequence[Speaker], record: Record) -> None:
    """Write three things to `folder`; sentence n belongs to speaker n modulo their number.

    prompts/NAME.wav: a recording of each speaker to clone; zero_shot.lst: a list in seed-tts-eval's format with them,
    and with the speaker's own recording of each sentence in source/N.wav; source.tsv: those recordings and their
    texts, for the ceiling.
    """
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "source").mkdir(exist_ok=True)
    said = {speaker.name: PROMPTS[place % len(PROMPTS)] for place, speaker in enumerate(speakers)}
    for speaker in speakers:
        write_audio(folder / "prompts" / f"{speaker.name}.wav", record(speaker, said[speaker.name]), SAMPLE_RATE)
    listed, sources = [], []
    for number, sentence in enumerate(sentences):
        speaker = speakers[number % len(speakers)]
        name = f"{number:03d}"
        write_audio(folder / "source" / f"{name}.wav", record(speaker, sentence), SAMPLE_RATE)
        fields = (name, said[speaker.name], f"prompts/{speaker.name}.wav", sentence, f"source/{name}.wav")
        listed.append("|".join(fields))
        sources.append(f"source/{name}.wav\t{sentence}")
    (folder / "zero_shot.lst").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (folder / "source.tsv").write_text("\n".join(sources) + "\n", encoding="utf-8")
