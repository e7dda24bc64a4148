"""A loaded model in its halves, for benchmarks that run them one by one; and the machine that they run on."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.folder import BACKBONE, ModelCard
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.cli.model import ModelChoice
from vivavoce.engine.chunk_policy import ChunkPolicy, CrossfadeMode
from vivavoce.engine.engine import Engine, build_stages
from vivavoce.engine.lm_stage import plain_run
from vivavoce.engine.request import (
    Conditioning,
    EngineRequest,
    InputMode,
    SamplingParams,
    SegmentRequest,
    SpeechTokens,
    TokenRequest,
)
from vivavoce.engine.settings import EngineSettings, plan_memory
from vivavoce.engine.stages import VocoderInterface
from vivavoce.engine.vocoder_stage import Piece
from vivavoce.frontend.front_end import FrontEnd, load_front_end
from vivavoce.frontend.model_choice import choose_device, choose_dtype, model_folder
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.registry import VoiceRegistry
from vivavoce.frontend.voices.stores import open_voice_store
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce.models.build import LanguageModel, Models, build_language_model, build_models
from vivavoce.models.generations import MAX_FRAMES
from vivavoce.version import __version__
from vivavoce_bench.batches import Job, Samples
from vivavoce_bench.chunked import Cut, TokenSpeech
from vivavoce_triton.client.utterance import Utterance


def reset_peaks(device: torch.device | None) -> None:
    """Let the peak of the device's memory count from now on."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def resources(device: torch.device | None) -> dict[str, int | None]:
    """Flat keys of the memory that was used: the device's since `reset_peaks`, this process's since its start."""
    cuda = device is not None and device.type == "cuda"
    # Kilobytes, but bytes on macOS.
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "gpu_memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "gpu_memory_reserved_bytes": torch.cuda.max_memory_reserved(device) if cuda else None,
        "rss_bytes": rss,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Flat keys of what the model ran on."""
    return {
        "device": str(device),
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cpu": processor(),
        "cpu_threads": torch.get_num_threads(),
        "cpu_cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def model_keys(command: str, card: ModelCard, dtype: torch.dtype) -> dict[str, Any]:
    """Flat keys of what was run, and with which model."""
    return {
        "vivavoce": __version__,
        "command": command,
        "model": card.name,
        "trained": card.trained,
        "dtype": str(dtype).removeprefix("torch."),
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


@dataclass(frozen=True, eq=False)
class BenchModel:
    """One model's flow and vocoder, front ends and voices; its language model is loaded when it is asked for."""

    folder: Path
    variant: str | None
    models: Models
    front_end: FrontEnd
    tokenizer: TextTokenizer
    registry: VoiceRegistry

    @classmethod
    def load(cls, choice: ModelChoice) -> BenchModel:
        """Load a model without an engine; errors as in `vivavoce.load`."""
        folder = model_folder(choice.model)
        device = choose_device(choice.device)
        dtype = choose_dtype(choice.dtype, device, folder)
        models = build_models(folder, device, dtype, choice.variant, language_model=False)
        front_end = load_front_end(folder, models.config)
        store, extractor = open_voice_store(choice.voices), front_end.extractor
        registry = VoiceRegistry(extractor, store, built_in_voices(folder), extractor.fingerprint)
        tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
        return cls(folder, choice.variant, models, front_end, tokenizer, registry)

    def language_model(self) -> LanguageModel:
        """The language model, loaded anew."""
        return build_language_model(self.folder, self.models.device, self.models.dtype, self.variant)

    @property
    def vocabulary(self) -> MergedVocabulary:
        """The ids of text and speech in one table."""
        config = self.models.config
        return MergedVocabulary(len(self.tokenizer), config.lm.vocabulary.num_speech_tokens, config.generation)

    def voice(self, voice: str | AudioSource | None, prompt_text: str) -> Conditioning:
        """What a voice brings to the stages; errors as in `VoiceRegistry.resolve`."""
        return self.front_end.conditioning(self.registry.resolve(voice, prompt_text))

    def jobs(
        self, texts: Sequence[Utterance], seed: int, exact_tokens: int | None, voice: Conditioning | None = None
    ) -> list[Job]:
        """One job for each text; the seeds follow one another. `VivavoceError`: a text or a voice cannot be used.

        voice: of the texts that bring no recording; None: the model's first.
        """
        given = self.voice(None, "") if voice is None else voice
        heard = [given if one.reference is None else self.voice(one.reference, one.reference_text) for one in texts]
        return [
            Job(one.name, self._prompt(one.text, who, seed + place, exact_tokens), who, seed + place)
            for place, (one, who) in enumerate(zip(texts, heard, strict=True))
        ]

    def _prompt(self, text: str, voice: Conditioning, seed: int, exact_tokens: int | None) -> TokenRequest:
        rules, config = self.front_end.text, self.models.config
        ids = tuple(one for segment in rules.segments(text) for one in rules.encode(segment))
        # Runtimes that are compared share the rule for lengths: one token at least, and no share of the text's.
        sampling = SamplingParams(min_ratio=0.0, exact_tokens=exact_tokens)
        room = config.rates.tokens_in(MAX_FRAMES) - len(voice.flow_tokens)
        run = plain_run(config.lm, SegmentRequest(voice, text=ids, sampling=sampling), official=False, room=room)
        return TokenRequest(run.rows, run.forced_at, run.min_tokens, seed=seed, speaker=run.speaker)


class BenchToken2Wav:
    """Speech tokens → samples, [n] float32 on the host, by an engine without a language model.

    streams: whether chunks are made: the flow then keeps the state of what it has computed. overlap: speech tokens that
    neighbouring chunks share and are faded over; 0: the joins of the engine's own streams. Voices are `Conditioning`s.
    """

    def __init__(self, models: Models, settings: EngineSettings, *, streams: bool = False, overlap: int = 0) -> None:
        rates, stages = models.config.rates, None
        self.sample_rate = rates.sample_rate
        self.fade = max(rates.frames_of(overlap), 1) * rates.samples_per_frame
        """Samples over which a chunk is faded into the one before, from its first one on."""
        if not streams:
            settings = replace(settings, state_bytes=0)
        elif overlap:
            plan = plan_memory(models, settings)
            settings = replace(settings, state_bytes=plan.state_bytes, memory_bytes=None)
            stages = build_stages(models, settings, plan)
            assert stages.vocoder is not None
            frames = rates.frames_of(overlap)
            stages = replace(stages, vocoder=OverlappingVocoder(stages.vocoder, frames, rates.samples_per_frame))
        self.engine = Engine(models, settings, stages=stages)
        self.engine.warm_up(0.0)

    def waves(self, jobs: Sequence[Job], tokens: Sequence[Sequence[int]]) -> list[Samples]:
        """Samples of each job's tokens, made together."""
        segments = [
            SegmentRequest(job.voice, speech_tokens=tuple(said), seed=job.seed)
            for job, said in zip(jobs, tokens, strict=True)
        ]
        spoken = self.engine.submit(EngineRequest(tuple(segments))).result()
        return np.split(spoken.samples, np.cumsum(spoken.segment_samples)[:-1])

    def whole(self, speech: TokenSpeech) -> Samples:
        """All of a speech at once."""
        segment = SegmentRequest(speech.voice, speech_tokens=speech.tokens, seed=speech.seed)
        return self.engine.submit(EngineRequest((segment,))).result().samples

    def hear(self, voice: Conditioning) -> None:
        """Compute the state of a voice's prompt if it is not there, as for a voice that was heard before."""
        few = (0,) * 8
        list(self.chunks(TokenSpeech("", few, voice, 0), [Cut(len(few), len(few), final=True)]))

    def chunks(self, speech: TokenSpeech, cuts: Sequence[Cut]) -> Iterator[Samples]:
        """A speech chunk by chunk, each when it is asked for.

        The state of the voice's prompt is computed with the first chunk unless it was heard before.
        """
        segment = SegmentRequest(speech.voice, speech_tokens=(), seed=speech.seed)
        handle = self.engine.submit(EngineRequest((segment,), ChunkPolicy.low_latency(), InputMode.SPEECH))
        made, known = iter(handle), 0
        for cut in cuts:
            handle.text.push(SpeechTokens(speech.tokens[known : cut.seen], cut.hop, cut.final))
            known = cut.seen
            yield next(made).samples

    def close(self) -> None:
        """Stop the engine; the networks are the caller's."""
        self.engine.close()


@dataclass(eq=False)
class _OverlappingStream:
    """tail: the mel that the next chunk begins with; held: samples of it, which wait to be faded into that chunk."""

    seed: int
    tail: Tensor | None = None
    held: Tensor | None = None

    def frames_of(self, frames: int, final: bool, whole: bool) -> int:
        """Frames that are vocoded for a chunk of `frames`: what was held back before goes with them."""
        return frames if self.tail is None else frames + len(self.tail)


class OverlappingVocoder:
    """A vocoder stage whose chunks are vocoded by themselves, each from some frames before its own on, and faded over
    those. The flow's mel of the shared tokens does not change from chunk to chunk, so it is computed once.
    """

    def __init__(self, vocoder: VocoderInterface, frames: int, samples_per_frame: int) -> None:
        """frames: of mel that neighbouring chunks share."""
        self._vocoder, self._frames = vocoder, frames
        self._samples, self.prepare = frames * samples_per_frame, vocoder.prepare

    def open(self, seed: int, speed: float, joins: CrossfadeMode) -> _OverlappingStream:
        """See `VocoderInterface`."""
        return _OverlappingStream(seed)

    def close(self, stream: _OverlappingStream) -> None:
        """See `VocoderInterface`: nothing is held."""

    def run(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """See `VocoderInterface`; the end of a chunk waits for the next one unless it is final."""
        return [self._run(piece.stream, piece) for piece in pieces]

    def _run(self, stream: Any, piece: Piece) -> Tensor:
        mel = piece.mel if stream.tail is None else torch.cat((stream.tail, piece.mel))
        alone = self._vocoder.open(stream.seed, 1.0, CrossfadeMode.SEAMLESS)
        (samples,) = self._vocoder.run([Piece(alone, mel, final=True, whole=True)])
        self._vocoder.close(alone)
        if stream.held is not None:
            # A raised cosine between sample centres: both sides add up to one everywhere.
            shared = len(stream.held)
            rising = torch.sin(torch.pi / 2 * (torch.arange(shared, device=samples.device) + 0.5) / shared).square()
            samples = torch.cat((samples[:shared] * rising + stream.held * (1 - rising), samples[shared:]))
        if piece.final or piece.whole:
            return samples
        stream.tail, stream.held = mel[-self._frames :].clone(), samples[-self._samples :].clone()
        return samples[: -self._samples]
