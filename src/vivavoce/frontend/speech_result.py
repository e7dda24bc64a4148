"""Finished speech: its samples, the time spent on each stage, and the times at which the text is heard."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from threading import Event

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.handle import Handle, RequestResult
from vivavoce.engine.request import AudioChunk, Word
from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.frontend.audio.encode import AudioFormat, encode_whole, parse_format, write_audio
from vivavoce.frontend.audio.tag import AudioTag, new_tag
from vivavoce.frontend.delivery import delivery_of
from vivavoce.frontend.front_end import PlannedSegment
from vivavoce.frontend.speech import Delivery, Mark, joined, marks_of, moved
from vivavoce.frontend.word_times import WordTimer

_LOOK_S = 0.01
"""Seconds between two checks whether the engine is done, while another thread can cancel the request."""
_PLAYERS = ("ffplay -nodisp -autoexit -loglevel error", "pw-play", "paplay", "aplay -q", "afplay", "mpv --no-video")


@dataclass(frozen=True)
class Timings:
    """Seconds spent on each stage and in total, without the extraction of the voice."""

    text_s: float
    lm_s: float
    flow_s: float
    vocoder_s: float
    total_s: float


@dataclass(frozen=True, eq=False)
class Speech:
    """Finished audio. samples: [n] float32 in [−1, 1]; sample_rate: hertz.

    marks: the characters and times of each segment; () without a text. tag: marks the files of `save` and `to_bytes` as
    synthetic speech; `dataclasses.replace(speech, tag=None)` removes it. words: the characters and times of each word,
    if `word_times` is on. delivery: how well the text was spoken, if `word_times` or `guard` is on."""

    samples: NDArray[np.float32]
    sample_rate: int
    timings: Timings
    marks: tuple[Mark, ...] = ()
    tag: AudioTag | None = None
    words: tuple[Word, ...] = ()
    delivery: Delivery | None = None

    def __repr__(self) -> str:
        return f"Speech({self.duration_s:.2f} s, {self.sample_rate} Hz, {len(self.marks)} segments)"

    def __add__(self, other: Speech) -> Speech:
        """Append `other`; its times and characters are shifted. Raises InvalidRequest if the sample rates differ."""
        if not isinstance(other, Speech):
            return NotImplemented
        if self.sample_rate != other.sample_rate:
            raise InvalidRequest(
                f"sample_rate: {self.sample_rate} and {other.sample_rate} Hz cannot be joined; use one model"
            )
        at, s = self.marks[-1].end_character if self.marks else 0, self.duration_s
        marks = tuple(moved(one, at, s) for one in other.marks)
        words = tuple(moved(one, at, s) for one in other.words)
        timings = Timings(*map(sum, zip(astuple(self.timings), astuple(other.timings), strict=True)))
        samples, words = np.concatenate((self.samples, other.samples)), (*self.words, *words)
        delivery = joined([one.delivery for one in (self, other) if one.delivery is not None])
        return Speech(samples, self.sample_rate, timings, (*self.marks, *marks), self.tag, words, delivery)

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / self.sample_rate

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work per second of audio."""
        return self.timings.total_s / self.duration_s

    def save(self, path: str | Path, sample_rate: int | None = None) -> None:
        """Write a file in the format of its suffix (.wav, .mp3, .opus …). Raises the errors of `write_audio`."""
        write_audio(path, self.samples, self.sample_rate, sample_rate, self.tag)

    def to_bytes(self, format: AudioFormat | str = AudioFormat.WAV, sample_rate: int | None = None) -> bytes:
        """Return the bytes of an audio file. format: "wav", "mp3", "opus", "aac" …; sample_rate: hertz in the file.
        Raises InvalidRequest if the format or the rate is not supported."""
        codec = parse_format(format, field="format").codec
        return encode_whole(codec, self.samples, self.sample_rate, sample_rate, self.tag)

    def play(self) -> None:
        """Play the speech to its end, with the package sounddevice or with a program (ffplay, aplay, afplay …).

        Raises MissingDependency if no player is installed, or if no player can play the speech."""
        failures = []
        try:
            import sounddevice

            sounddevice.play(self.samples, self.sample_rate, blocking=True)
            return
        except Exception as error:  # the package, its library or the sound card may be missing
            failures.append(f"sounddevice: {error}")
        with tempfile.TemporaryDirectory() as folder:
            self.save(path := Path(folder) / "speech.wav")
            for name, *options in map(str.split, _PLAYERS):
                if program := shutil.which(name):
                    done = subprocess.run((program, *options, path), stdin=subprocess.DEVNULL, capture_output=True)
                    if done.returncode == 0:
                        return
                    failures.append(f"{name}: {done.stderr.decode(errors='replace') or done.returncode}")
        tried = " ".join("; ".join(failures).split())
        raise MissingDependency(
            f"play: nothing here could play it ({tried}); `pip install sounddevice`, install FFmpeg, or save it"
        )

    def _repr_html_(self) -> str:
        """Show an audio player in a notebook."""
        content = base64.b64encode(self.to_bytes(AudioFormat.MP3)).decode()
        return f'<audio controls src="data:audio/mpeg;base64,{content}"></audio>'


@dataclass(frozen=True, eq=False)
class PendingSpeech:
    """Speech that the engine is still making.

    rate: sample rate in hertz. text_s: seconds spent on the text. planned: the text's segments, () without a text.
    model: the model's name, for the tag. word_times: whether the result has the times of words. pace: usual number of
    speech tokens per text token, or None if unknown."""

    handle: Handle
    rate: int
    text_s: float
    text: str
    planned: Sequence[PlannedSegment]
    model: str
    word_times: bool = False
    pace: float | None = None

    def result(self, cancel: Event | None = None) -> Speech:
        """Wait for the speech. Any error or interruption cancels the request. Setting `cancel` in another thread
        cancels the request, too; then RequestCancelled is raised."""
        try:
            while cancel is not None and not self.handle.done:
                if cancel.wait(_LOOK_S):
                    self.handle.cancel()
            return self._speech(self.handle.result())
        finally:
            self.handle.cancel()

    async def result_async(self) -> Speech:
        """Await the speech in an event loop, as `result` does in a thread."""
        return self._speech(await self.handle.result_async())

    def _speech(self, spoken: RequestResult) -> Speech:
        spent, text_s = spoken.timings, self.text_s
        timings = Timings(text_s, spent.lm_s, spent.flow_s, spent.vocoder_s, text_s + (spent.finished_s or 0.0))
        spans = [(one.start, one.end) for one in self.planned]
        marks = marks_of(self.text, spans, spoken.segment_samples, self.rate, spoken.cut)
        words, delivery = self._followed(spoken)
        return Speech(spoken.samples, self.rate, timings, marks, new_tag(self.model), words, delivery)

    def _followed(self, spoken: RequestResult) -> tuple[tuple[Word, ...], Delivery | None]:
        timer, past = WordTimer(), 0
        if not any(one.words for one in self.planned):
            return (), None
        for segment, one in enumerate(self.planned):
            timer.plan(segment, one.words)
        for segment, count in enumerate(spoken.segment_samples):
            samples, reached = spoken.samples[past : past + count], spoken.reached[segment]
            timer.add(self.text, AudioChunk(samples, self.rate, segment=segment, reached=reached), ended=True)
            past += count
        delivery = delivery_of(self.text, timer.segments, spoken, self.pace)
        return tuple(timer.words) if self.word_times else (), delivery
