"""One loaded model behind every entry point: text, a voice and options in, audio out."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.devices import seen_alone
from vivavoce.engine.engine import Engine
from vivavoce.engine.engine_group import DeviceInfo, EngineGroup
from vivavoce.engine.handle import Handle, RequestResult
from vivavoce.engine.request import EngineRequest, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest, MissingDependency, RequestCancelled
from vivavoce.frontend.audio.encode import AudioFormat, encode_whole, parse_format, write_audio
from vivavoce.frontend.front_end import ModelFrontEnd, load_front_end
from vivavoce.frontend.merged_folder import merged_folder
from vivavoce.frontend.model_choice import share_device
from vivavoce.frontend.session import RequestSession, Text, in_turn
from vivavoce.frontend.speech import Mark, SpeakOptions, check_seed, marks_of
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.voice import Voice, check_fits
from vivavoce.models.build import build_models
from vivavoce_textnorm import never_cancelled

_LOOK_S = 0.01
"""How often a `speak` that another thread can cancel looks whether the engine is done."""
_PLAYERS = ("ffplay -nodisp -autoexit -loglevel error", "pw-play", "paplay", "aplay -q", "afplay", "mpv --no-video")


@dataclass(frozen=True)
class Timings:
    """Seconds spent, by stage, and in all; extracting the voice comes before and is not counted."""

    text_s: float
    lm_s: float
    flow_s: float
    vocoder_s: float
    total_s: float


@dataclass(frozen=True, eq=False)
class Speech:
    """Finished audio; samples: [n] float32 in [−1, 1].

    marks: for each segment of the text which of its characters it speaks, and when; () where there was no text.
    """

    samples: NDArray[np.float32]
    sample_rate: int
    timings: Timings
    marks: tuple[Mark, ...] = ()

    def __repr__(self) -> str:
        return f"Speech({self.duration_s:.2f} s, {self.sample_rate} Hz, {len(self.marks)} segments)"

    def __add__(self, other: Speech) -> Speech:
        """This one and then the other; their marks point into the two texts joined. InvalidRequest: rates differ."""
        if self.sample_rate != other.sample_rate:
            raise InvalidRequest(
                f"sample_rate: {self.sample_rate} and {other.sample_rate} Hz do not join; use one model"
            )
        at, s = self.marks[-1].end_character if self.marks else 0, self.duration_s
        moved = (
            Mark(one.text, at + one.start_character, at + one.end_character, s + one.start_s, s + one.end_s, one.cut)
            for one in other.marks
        )
        timings = Timings(*map(sum, zip(astuple(self.timings), astuple(other.timings), strict=True)))
        return Speech(np.concatenate((self.samples, other.samples)), self.sample_rate, timings, (*self.marks, *moved))

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / self.sample_rate

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work per second of audio."""
        return self.timings.total_s / self.duration_s

    def save(self, path: str | Path, sample_rate: int | None = None) -> None:
        """Write a file in the format that its suffix names (.wav, .mp3, .opus …); errors as `write_audio`."""
        write_audio(path, self.samples, self.sample_rate, sample_rate)

    def to_bytes(self, format: AudioFormat | str = AudioFormat.WAV, sample_rate: int | None = None) -> bytes:
        """A file in memory: "wav", "mp3", "opus", "aac", "flac", "pcm" … InvalidRequest: another name, or rate."""
        return encode_whole(parse_format(format, field="format").codec, self.samples, self.sample_rate, sample_rate)

    def play(self) -> None:
        """Play it and wait for its end, by the package sounddevice or by a program (ffplay, aplay, afplay …).

        MissingDependency: none of them is there, or none can play.
        """
        failures = []
        try:
            import sounddevice

            sounddevice.play(self.samples, self.sample_rate, blocking=True)
            return
        except Exception as error:  # its library, or the sound card, may be missing
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
        """A player, in a notebook."""
        content = base64.b64encode(self.to_bytes(AudioFormat.MP3)).decode()
        return f'<audio controls src="data:audio/mpeg;base64,{content}"></audio>'


@dataclass(frozen=True, eq=False)
class _Making:
    """Whole speech that the engine is at; spans: the characters of the text that each of its segments speaks."""

    handle: Handle
    rate: int
    text_s: float
    text: str
    spans: Sequence[tuple[int, int]]

    def result(self, cancel: Event | None = None) -> Speech:
        """Wait for it; what ends the waiting ends the work. RequestCancelled: `cancel` was set."""
        try:
            while cancel is not None and not self.handle.done:
                if cancel.wait(_LOOK_S):
                    self.handle.cancel()
            return self.speech(self.handle.result())
        finally:
            self.handle.cancel()

    def speech(self, spoken: RequestResult) -> Speech:
        """What the engine has made of it."""
        spent, text_s = spoken.timings, self.text_s
        timings = Timings(text_s, spent.lm_s, spent.flow_s, spent.vocoder_s, text_s + (spent.finished_s or 0.0))
        marks = marks_of(self.text, self.spans, spoken.segment_samples, self.rate, spoken.cut)
        return Speech(spoken.samples, self.rate, timings, marks)


def open_engine(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    variant: str | None,
    settings: EngineSettings,
    beside: int = 1,
) -> Engine:
    """The engine of an official folder; beside: engines on the device, this one included."""
    share_device(device, beside, bounded=settings.memory_bytes is not None)
    apart = settings.lm_backend != "torch"
    models = build_models(folder, device, dtype, variant, language_model=not apart)
    if apart:
        models = replace(models, merged=merged_folder(folder, dtype, variant))
    return Engine(models, settings)


class Synthesizer:
    """An engine and the front end of its model."""

    def __init__(self, engine: Engine, front_end: ModelFrontEnd) -> None:
        self.engine, self.front_end = engine, front_end

    @classmethod
    def load(
        cls,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        variant: str | None = None,
        settings: EngineSettings = EngineSettings(),
        text_processes: int = 0,
    ) -> Synthesizer:
        """Load an official folder; see `build_models` and `TextFrontEnd` for the arguments and errors."""
        engine = open_engine(folder, device, dtype, variant, settings)
        return cls(engine, load_front_end(folder, cast(ModelConfig, engine.models.config), text_processes))

    @classmethod
    def spread(
        cls,
        folder: Path,
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        variant: str | None,
        settings: EngineSettings,
        text_processes: int,
    ) -> Synthesizer:
        """`load` with an engine on each of these devices, in a process of its own; of one named twice each a part."""
        launches = {}
        for place, device in enumerate(devices):
            seen_as, variables = seen_alone(str(device))
            how = torch.device(seen_as), dtype, variant, settings, devices.count(device)
            launches[f"{place} {device}"] = partial(open_engine, folder, *how), variables
        engines = EngineGroup(launches, DeviceInfo(devices[0], dtype))
        return cls(cast(Engine, engines), load_front_end(folder, text_processes=text_processes))

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        """Load the tables that texts are read by, then see `Engine.warm_up`, which sets them aside, too."""
        self.front_end.text.warm_up()
        self.engine.warm_up(seconds, streams)

    def close(self) -> None:
        """Finish what was asked for, and stop; a device that does not answer is given up as by `Engine.close`."""
        self.engine.close()
        self.front_end.text.close()

    def speak(
        self, text: str, voice: Voice, options: SpeakOptions = SpeakOptions(), cancel: Event | None = None
    ) -> Speech:
        """The whole text; its segments are spoken side by side and joined. Errors as `RequestSession.start`."""
        return self._begin(text, voice, options, cancel).result(cancel)

    async def aspeak(self, text: str, find_voice: Callable[[], Voice], options: SpeakOptions) -> Speech:
        """`speak` for an event loop, which goes on; cancelling it frees its slots. find_voice: may block."""
        cancel = Event()
        making = await in_turn(lambda: self._begin(text, find_voice(), options, cancel), cancel.set)
        return making.speech(await making.handle.result_async())

    def speak_many(
        self, texts: Iterable[str], voice: Voice, options: SpeakOptions, cancel: Event | None = None
    ) -> Iterator[Speech]:
        """`speak` for one text after the other, in their order; the engine has as many of them as it has slots."""
        waiting: deque[_Making] = deque()

        def ready(most: int) -> Iterator[Speech]:
            while waiting and (waiting[0].handle.done or len(waiting) > most):
                yield waiting.popleft().result(cancel)

        try:
            for text in texts:
                waiting.append(self._begin(text, voice, options, cancel))
                yield from ready(self.engine.memory.slots)
            yield from ready(0)
        except InvalidRequest:
            yield from ready(0)  # the texts before the one that is refused
            raise
        finally:
            for one in waiting:
                one.handle.cancel()

    def convert(self, source: AudioSource, voice: Voice, speed: float = 1.0, seed: int = 0) -> Speech:
        """The words of a recording in another voice; InvalidAudio, InvalidRequest: what cannot be used."""
        started = time.perf_counter()
        check_seed(seed)
        check_fits(voice, self.front_end.config)
        return self._submit([self.front_end.plan_conversion(source, voice, speed, seed)], started).result()

    def stream(
        self, text: Text, voice: Voice, options: SpeakOptions = SpeakOptions(), policy: ChunkPolicy | None = None
    ) -> RequestSession:
        """Audio in chunks as it is made, see `RequestSession.start`; a segment holds 300 s, its reference included."""
        session = RequestSession(self.engine, self.front_end, policy)
        session.start(text, voice, options)
        return session

    def astream(
        self, text: Text, find_voice: Callable[[], Voice], options: SpeakOptions, policy: ChunkPolicy | None = None
    ) -> RequestSession:
        """`stream` for an event loop; it begins with the first chunk that is asked for. find_voice: may block."""
        return RequestSession(self.engine, self.front_end, policy, (text, find_voice, options))

    def _begin(self, text: str, voice: Voice, options: SpeakOptions, cancel: Event | None) -> _Making:
        started, left = time.perf_counter(), never_cancelled if cancel is None else cancel.is_set
        if left():
            raise RequestCancelled("request: was cancelled")
        self.engine.check_load(streaming=False)
        planned = list(self.front_end.plan_as_read(text, voice, options, left))
        if left():
            raise RequestCancelled("request: was cancelled")
        return self._submit([one.request for one in planned], started, text, [(one.start, one.end) for one in planned])

    def _submit(
        self, requests: Sequence[SegmentRequest], started: float, text: str = "", spans: Sequence[tuple[int, int]] = ()
    ) -> _Making:
        text_s = time.perf_counter() - started
        handle = self.engine.submit(EngineRequest(tuple(requests)))
        return _Making(handle, self.front_end.config.rates.sample_rate, text_s, text, spans)
