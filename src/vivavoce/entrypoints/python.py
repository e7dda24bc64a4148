"""The Python API: `tts = vivavoce.load(); tts.speak("Hello").save("hello.wav")`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.checkpoint.folder import ModelCard
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import CostSnapshot
from vivavoce.engine.request import SamplingParams
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.statistics import StatisticsSnapshot
from vivavoce.service.model_choice import choose_device, choose_dtype, count_text_processes, model_folder
from vivavoce.service.session import RequestSession
from vivavoce.service.speech import Mode, SpeakOptions
from vivavoce.service.synthesizer import Speech, Synthesizer
from vivavoce.service.voices.extract import AudioSource
from vivavoce.service.voices.registry import VoiceRegistry
from vivavoce.service.voices.stores import VoiceStore, open_voice_store
from vivavoce.service.voices.voice import Voice, built_in_voices

_untrained = logging.getLogger("vivavoce.untrained")
"""Of its own, so that a program that tells its user by itself can switch this one warning off."""


def load(
    model: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    variant: str | None = None,
    voices: str | Path | None = None,
    settings: EngineSettings | None = None,
    text_processes: int | None = None,
) -> Vivavoce:
    """Load a model and its voices.

    Args:
        model: an official CosyVoice2 folder, or the name of a downloaded one ("CosyVoice2-0.5B"). None: the
            mini model in the package, a demo that speaks English and shows how the program works.
        device: "auto" (a CUDA device if there is one), "cpu", "cuda", "cuda:1"; "mps" is untested.
        dtype: of language model and flow: "auto" (float16 on CUDA, else float32), "float32", "bfloat16", "float16".
        variant: take `llm.VARIANT.pt` and the like where the folder has them.
        voices: folder of stored voices, or the URL of a redis (`redis://host`); None: the user's own folder.
        settings: slots, memory and admission of the engine; None: as the device allows, and everyone waits in turn.
        text_processes: processes that read texts out (numbers, dates, units), so that many users' texts do not hold up
            the engine; None: two to four on CUDA, none elsewhere.

    On CUDA, cuDNN's attention is switched off for the whole process: it plans anew for every length it meets.

    Raises:
        VivavoceError: the model or the device cannot be used; the message says why and what to do.
    """
    where = choose_device(device)
    processes = count_text_processes(text_processes, where, on_cpu=0)
    synthesizer = Synthesizer.load(
        model_folder(model), where, choose_dtype(dtype, where), variant, settings or EngineSettings(), processes
    )
    if not synthesizer.front_end.card.trained:
        card = synthesizer.front_end.card
        _untrained.warning("model: %(name)s is %(what)s", {"name": card.name, "what": card.description})
    return Vivavoce(synthesizer, open_voice_store(voices))


class Vivavoce:
    """A loaded model that speaks. Made by `load`.

    A voice is given as a recording (path, bytes, open file) with its transcript in `prompt_text`, as the name of a
    stored or built-in voice, or as a `Voice`; None is the model's first built-in voice.
    """

    def __init__(self, synthesizer: Synthesizer, store: VoiceStore) -> None:
        self._synthesizer = synthesizer
        self.store = store
        """Voices kept by name."""
        front_end = synthesizer.front_end
        self._registry = VoiceRegistry(
            front_end.extractor, store, built_in_voices(front_end.folder), front_end.extractor.fingerprint
        )
        self.card: ModelCard = front_end.card
        """The model's name, and what it says of itself."""
        self.sample_rate: int = front_end.config.rates.sample_rate
        """Samples per second of all audio that comes out."""
        self.device: torch.device = synthesizer.engine.models.device
        """Where the networks run."""
        self.dtype: torch.dtype = synthesizer.engine.models.dtype
        """Of language model and flow."""

    @property
    def statistics(self) -> StatisticsSnapshot:
        """What the engine has done so far: batches, queues, slots, underruns."""
        return self._synthesizer.engine.statistics

    @property
    def costs(self) -> CostSnapshot:
        """What each stage's batches have cost so far, by their size: what admission reckons with."""
        return self._synthesizer.engine.costs

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        """Get ready before the first user comes: on a CUDA device record the stages' launches, then measure what
        admission and deadlines are planned with.

        streams: record what this many low_latency ones at once need, which takes less time, and the rest when it is
        first met; None: what any load needs. InvalidRequest: it is below 1.
        """
        self._synthesizer.engine.warm_up(seconds, streams)

    def close(self) -> None:
        """Finish what was asked for, and stop; nothing can be spoken after it."""
        self._synthesizer.close()

    def __enter__(self) -> Vivavoce:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def voices(self) -> list[str]:
        """Names of the voices that can be used: stored and built in."""
        return self._registry.names()

    def voice(self, voice: Voice | AudioSource | None = None, prompt_text: str = "") -> Voice:
        """The voice that `speak` would take for these two arguments.

        Recordings are extracted once and the last ones remembered; do not write to a voice's tensors.

        Raises:
            VoiceNotFound: neither a name nor a file.
            InvalidRequest: a voice of another model, a transcript of what is no recording, or no built-in voice.
            InvalidAudio, InvalidText: the recording or its transcript cannot be used.
        """
        return self._registry.resolve(voice, prompt_text)

    def normalize(self, text: str) -> str:
        """The text as it is spoken: "It is 11:42." becomes "It is eleven forty two."; "" for white space.

        InvalidText: it is longer than 20,000 characters, or has characters that the model does not know.
        """
        return self._synthesizer.front_end.text.normalize(text)

    def embed(self, source: AudioSource) -> Tensor:
        """The speaker embedding of 0.5 to 30 s of speech: [192] float32, not normalised, and nothing else of a voice.

        Two of one speaker point in about the same direction: compare them by cosine. InvalidAudio: the source is
        unreadable, too short, too long, silent or not finite.
        """
        return self._synthesizer.front_end.extractor.embedding(source)

    def speak(
        self,
        text: str,
        voice: Voice | AudioSource | None = None,
        *,
        prompt_text: str = "",
        mode: Mode | str | None = None,
        instruct: str | None = None,
        speed: float = 1.0,
        seed: int = 0,
        sampling: SamplingParams | None = None,
        language: str | None = None,
    ) -> Speech:
        """Speak a text of up to 20,000 characters; the speech's `marks` say when each segment of it is heard.

        Args:
            text: what to say; numbers, dates and units are read out.
            voice: see the class.
            prompt_text: what a reference recording says; without it the voice is cloned, the manner is not.
            mode: zero_shot, cross_lingual, instruct or sft; None: the fullest that the voice allows.
            instruct: how to say it, in words.
            speed: 0.5 … 2.0.
            seed: the same seed gives the same audio (a stream, which attends chunk by chunk, gives its own).
            sampling: None: as the model's own configuration says.
            language: whose rules read numbers and dates, "en" or "zh"; None: told from the text.

        Raises:
            VivavoceError: bad input; the message names the field, the limit and the value.
        """
        options = _options(mode=mode, instruct=instruct, speed=speed, seed=seed, sampling=sampling, language=language)
        return self._synthesizer.speak(text, self.voice(voice, prompt_text), options)

    def stream(
        self,
        text: str | Iterable[str],
        voice: Voice | AudioSource | None = None,
        *,
        prompt_text: str = "",
        mode: Mode | str | None = None,
        instruct: str | None = None,
        speed: float = 1.0,
        seed: int = 0,
        sampling: SamplingParams | None = None,
        language: str | None = None,
        policy: ChunkPolicy | None = None,
    ) -> RequestSession:
        """Speak in chunks, each as soon as it is made; arguments as in `speak`. The stream's `marks` say when each
        segment of the text was heard; `close`, or letting go of the stream, cancels it.

        `text` may be an iterable of pieces, such as a language model's output: speech starts while they arrive.
        Bad input is refused here, before the first chunk; a piece that arrives later, when it arrives.
        """
        options = _options(mode=mode, instruct=instruct, speed=speed, seed=seed, sampling=sampling, language=language)
        return self._synthesizer.stream(text, self.voice(voice, prompt_text), options, policy)

    astream = stream
    """`stream` for an event loop: `async for chunk in tts.astream("Hello.")`.

    A recording that is given as the voice is extracted here and blocks: pass it through `voice` in a thread first.
    """

    def convert(
        self,
        source: AudioSource,
        voice: Voice | AudioSource | None = None,
        *,
        prompt_text: str = "",
        speed: float = 1.0,
        seed: int = 0,
    ) -> Speech:
        """Say the words of a recording (30 s at most) in another voice."""
        return self._synthesizer.convert(source, self.voice(voice, prompt_text), speed, seed)

    def extract_voice(self, source: AudioSource, prompt_text: str = "", *, name: str = "") -> Voice:
        """Extract a voice from 0.5 to 30 s of speech; keep it with `tts.store.save(voice)`."""
        return self._synthesizer.front_end.extractor.extract(source, prompt_text).named(name)


def _options(*, sampling: SamplingParams | None, **given: Any) -> SpeakOptions:
    return SpeakOptions(sampling=sampling or SamplingParams(), **given)
