"""Runs the teacher: batches of lines and speakers → waveforms and speech tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce_training.data.kokoro.labels import Curves, Spoken, spoken_by
from vivavoce_training.data.kokoro.network import HALF_STYLE, Kokoro
from vivavoce_training.data.kokoro.phonemes import PAUSE, Line, accents
from vivavoce_training.data.kokoro.weights import load_teacher
from vivavoce_training.data.speakers import VOICES, shares
from vivavoce_training.data.store import TOKEN_SAMPLES, Speaker

WEIGHTS, VOICE_FOLDER = "kokoro.onnx", "voices"
STYLE_SIZE = 2 * HALF_STYLE
NUM_TRAITS = 12
_SPEAKERS_AT_ONCE = 32
TUNING_TEXTS = (
    "The harbor was quiet before dawn, and the old boats moved slowly.",
    "Would you like some more tea, or should we go for a walk?",
    "No, I don't think so. It was much better than I had expected!",
    "There are three reasons for that: time, money, and the weather.",
)
"""Texts from which a speaker's median pitch is measured."""


class Said(NamedTuple):
    """wave: [batch, samples] float32 on the device, or None; spoken: labels, None for an utterance without speech."""

    wave: Tensor | None
    spoken: list[Spoken | None]


class Labelled(NamedTuple):
    """A recording. samples: float32 [tokens · TOKEN_SAMPLES] at 24 kHz; labels: its speech tokens, int32 [tokens]."""

    samples: NDArray[np.float32]
    labels: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Teacher:
    """The teacher's network; folder: its files, which `fetch_teacher` downloaded."""

    folder: Path
    model: Kokoro
    device: torch.device

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> Teacher:
        return cls(folder, load_teacher(folder / WEIGHTS).to(device), device)

    @cached_property
    def tables(self) -> dict[str, NDArray[np.float32]]:
        """Voice → its styles [lengths, 256]; row n - 1 is the style for a sequence of n symbols."""
        return {
            name: np.fromfile(self.folder / VOICE_FOLDER / f"{name}.bin", "<f4").reshape(-1, STYLE_SIZE)
            for name in VOICES
        }

    def style(self, speaker: Speaker, num_ids: int) -> NDArray[np.float32]:
        """The speaker's style [256] for a line of `num_ids` phoneme ids."""
        row = min(max(num_ids - 2, 1), len(self.tables[VOICES[0]])) - 1
        timbre, manner = (
            sum(share * self.tables[name][row] for name, share in shares(recipe).items())
            for recipe in (speaker.timbre, speaker.manner)
        )
        return np.concatenate([timbre[:HALF_STYLE], manner[HALF_STYLE:]]).astype(np.float32)

    @torch.inference_mode()
    def say(
        self,
        lines: Sequence[Line],
        speakers: Sequence[Speaker],
        usual: NDArray[np.float32],
        r: np.random.Generator,
        *,
        aloud: bool = True,
    ) -> Said:
        """Speak a batch. usual: the speakers' `usual_pitch`; aloud: make waveforms, not only labels."""
        ids, lengths, styles, phones = self._batch(lines, speakers)
        plan = self.model.plan(ids, lengths, styles)
        wave = None
        if aloud:
            with torch.autocast(self.device.type, torch.float16, enabled=self.device.type == "cuda"):
                wave = self.model.speak(ids, lengths, styles, plan)
        return Said(wave, spoken_by(Curves.of(plan, phones), usual, r))

    @torch.inference_mode()
    def usual_pitch(self, speakers: Sequence[Speaker]) -> NDArray[np.float32]:
        """Measure the median pitch of each speaker in semitones above 1 Hz."""
        read = accents(self.folder)
        texts = {accent: [line for text in TUNING_TEXTS if (line := read[accent](text))] for accent in "ab"}
        found: list[float] = []
        for first in range(0, len(speakers), _SPEAKERS_AT_ONCE):
            part = speakers[first : first + _SPEAKERS_AT_ONCE]
            pairs = [(line, one) for one in part for line in texts[one.manner[0]]]
            ids, lengths, styles, phones = self._batch(*zip(*pairs, strict=True))
            curves = Curves.of(self.model.plan(ids, lengths, styles), phones)
            for place in range(len(part)):
                own = slice(place * len(TUNING_TEXTS), (place + 1) * len(TUNING_TEXTS))
                found.append(float(np.median(curves.semitones[own][curves.voiced[own]])))
        return np.array(found, np.float32)

    def traits(self, speakers: Sequence[Speaker]) -> list[tuple[float, ...]]:
        """Compute principal components of each speaker's timbre, scaled to unit deviation over all voices."""
        timbres = np.stack([table[:, :HALF_STYLE].mean(0) for table in self.tables.values()])
        centre = timbres.mean(0)
        _, _, axes = np.linalg.svd(timbres - centre, full_matrices=False)
        spread = ((timbres - centre) @ axes[:NUM_TRAITS].T).std(0)
        places = dict(zip(self.tables, (timbres - centre) @ axes[:NUM_TRAITS].T / spread, strict=True))
        mixed = (sum(share * places[name] for name, share in shares(one.timbre).items()) for one in speakers)
        return [tuple(np.round(np.asarray(place), 3).tolist()) for place in mixed]

    def recording(self, speaker: Speaker, text: str) -> Labelled:
        """Record a speaker who says a text; ValueError: the text cannot be spoken."""
        line = accents(self.folder)[speaker.manner[0]](text)
        if line is None:
            raise ValueError(f"text: the teacher cannot read {text!r}; use a sentence of English words")
        usual = self.usual_pitch([speaker])
        torch.manual_seed(0)
        said = self.say([line], [speaker], usual, np.random.default_rng(0))
        (spoken,) = said.spoken
        assert said.wave is not None
        if spoken is None:
            raise ValueError(f"text: the teacher says nothing for {text!r}; use a sentence of English words")
        wave = said.wave[0, spoken.first : spoken.last].float().cpu().numpy()
        level = wave * np.float32(0.7 / max(1e-3, float(np.abs(wave).max())))
        labels = np.asarray(spoken.tokens, np.int32)
        return Labelled(np.pad(level, (0, len(labels) * TOKEN_SAMPLES - len(level))), labels)

    def _batch(
        self, lines: Sequence[Line], speakers: Sequence[Speaker]
    ) -> tuple[Tensor, Tensor, Tensor, NDArray[np.uint8]]:
        """Return padded ids, lengths on the host, styles, and the phones of the ids."""
        lengths = torch.tensor([len(line.ids) for line in lines])
        shape = len(lines), int(lengths.max())
        ids, phones = np.zeros(shape, np.int64), np.full(shape, PAUSE, np.uint8)
        for row, line in enumerate(lines):
            ids[row, : len(line.ids)], phones[row, : len(line.phones)] = line.ids, line.phones
        styles = np.stack([self.style(one, len(line.ids)) for one, line in zip(speakers, lines, strict=True)])
        return torch.from_numpy(ids).to(self.device), lengths, torch.from_numpy(styles).to(self.device), phones
