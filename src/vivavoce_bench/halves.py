"""The language model and token2wav (flow and vocoder) of one model, loaded apart for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
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
from vivavoce.engine.settings import EngineSettings
from vivavoce.frontend.audio.encode import write_audio
from vivavoce.frontend.front_end import FrontEnd, load_front_end
from vivavoce.frontend.model_choice import choose_device, choose_dtype, model_folder
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.registry import VoiceRegistry
from vivavoce.frontend.voices.stores import open_voice_store
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce.models.build import LanguageModel, Models, build_language_model, build_models
from vivavoce.models.generations import MAX_FRAMES
from vivavoce_bench import chunked
from vivavoce_bench.batches import BatchFigures, BatchRig, Job, Samples, TokenBackend
from vivavoce_bench.chunked import ChunkedSpeech, Cut, TokenSpeech
from vivavoce_bench.hardware import reset_peaks
from vivavoce_bench.token_backends import OwnModel
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_triton.client.utterance import Utterance


@dataclass(frozen=True, eq=False)
class BenchModel:
    """One model's flow and vocoder, front end and voices; the language model is loaded on demand."""

    folder: Path
    variant: str | None
    models: Models
    front_end: FrontEnd
    tokenizer: TextTokenizer
    registry: VoiceRegistry

    @classmethod
    def load(
        cls,
        model: str | None,
        device: str = "auto",
        dtype: str = "auto",
        variant: str | None = None,
        voices: str | None = None,
    ) -> BenchModel:
        folder, chosen = model_folder(model), choose_device(device)
        models = build_models(folder, chosen, choose_dtype(dtype, chosen, folder), variant, language_model=False)
        front_end = load_front_end(folder, models.config)
        store, extractor = open_voice_store(voices), front_end.extractor
        registry = VoiceRegistry(extractor, store, built_in_voices(folder), extractor.fingerprint)
        tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
        return cls(folder, variant, models, front_end, tokenizer, registry)

    def language_model(self) -> LanguageModel:
        return build_language_model(self.folder, self.models.device, self.models.dtype, self.variant)

    @property
    def vocabulary(self) -> MergedVocabulary:
        config = self.models.config
        return MergedVocabulary(len(self.tokenizer), config.lm.vocabulary.num_speech_tokens, config.generation)

    def voice(self, voice: str | AudioSource | None, prompt_text: str) -> Conditioning:
        return self.front_end.conditioning(self.registry.resolve(voice, prompt_text))

    def jobs(
        self, texts: Sequence[Utterance], seed: int, exact_tokens: int | None, voice: Conditioning | None = None
    ) -> list[Job]:
        """Make one job per text, with consecutive seeds. `VivavoceError`: a text or a voice cannot be used.

        voice: voice of texts without a recording; None: the model's first voice.
        """
        given = self.voice(None, "") if voice is None else voice
        heard = [given if one.reference is None else self.voice(one.reference, one.reference_text) for one in texts]
        return [
            Job(one.name, self._prompt(one.text, who, seed + index, exact_tokens), who, seed + index)
            for index, (one, who) in enumerate(zip(texts, heard, strict=True))
        ]

    def _prompt(self, text: str, voice: Conditioning, seed: int, exact_tokens: int | None) -> TokenRequest:
        rules, config = self.front_end.text, self.models.config
        ids = tuple(one for segment in rules.segments(text) for one in rules.encode(segment))
        # All compared runtimes have the same minimum length: one token, whatever the text.
        sampling = SamplingParams(min_ratio=0.0, exact_tokens=exact_tokens)
        room = config.rates.tokens_in(MAX_FRAMES) - len(voice.flow_tokens)
        run = plain_run(config.lm, SegmentRequest(voice, text=ids, sampling=sampling), official=False, room=room)
        return TokenRequest(run.rows, run.forced_at, run.min_tokens, seed=seed, speaker=run.speaker)


class BenchToken2Wav:
    """Turns speech tokens into samples, [n] float32 on the host, with an engine without a language model.

    streams: `chunks` is used, so the flow keeps its state. Voices are `Conditioning`s.
    """

    def __init__(self, models: Models, settings: EngineSettings, *, streams: bool = False) -> None:
        rates = models.config.rates
        self.sample_rate, self.samples_per_frame = rates.sample_rate, rates.samples_per_frame
        self.engine = Engine(models, settings if streams else replace(settings, state_bytes=0))
        self.engine.warm_up(0.0)

    def waves(self, jobs: Sequence[Job], tokens: Sequence[Sequence[int]]) -> list[Samples]:
        segments = [
            SegmentRequest(job.voice, speech_tokens=tuple(said), seed=job.seed)
            for job, said in zip(jobs, tokens, strict=True)
        ]
        spoken = self.engine.submit(EngineRequest(tuple(segments))).result()
        return np.split(spoken.samples, np.cumsum(spoken.segment_samples)[:-1])

    def whole(self, speech: TokenSpeech) -> Samples:
        segment = SegmentRequest(speech.voice, speech_tokens=speech.tokens, seed=speech.seed)
        return self.engine.submit(EngineRequest((segment,))).result().samples

    def hear(self, voice: Conditioning) -> None:
        """Compute and cache the flow's state of a voice's prompt."""
        few = (0,) * 8
        list(self.chunks(TokenSpeech("", few, voice, 0), [Cut(len(few), len(few), final=True)]))

    def chunks(self, speech: TokenSpeech, cuts: Sequence[Cut]) -> Iterator[Samples]:
        """Yield the samples of each chunk; a chunk is computed when it is asked for.

        The first chunk includes the time for the voice's prompt, unless `hear` was called before.
        """
        segment = SegmentRequest(speech.voice, speech_tokens=(), seed=speech.seed)
        handle = self.engine.submit(EngineRequest((segment,), ChunkPolicy.low_latency(), InputMode.SPEECH))
        audio, known = iter(handle), 0
        for cut in cuts:
            handle.text.push(SpeechTokens(speech.tokens[known : cut.seen], cut.hop, cut.final))
            known = cut.seen
            yield next(audio).samples

    def close(self) -> None:
        self.engine.close()


Say = Callable[[str], None]


def measure_batches(
    model: BenchModel,
    jobs: Sequence[Job],
    runtimes: Mapping[str, Callable[[], TokenBackend]],
    sizes: Sequence[int],
    token2wav_size: int | None,
    settings: EngineSettings,
    folder: Path | None,
    say: Say,
) -> list[BatchFigures]:
    """Measure every runtime of the language model with every batch size.

    token2wav_size: batch size of token2wav, None: the language model's; folder: where the audio is saved.
    """
    found: list[BatchFigures] = []
    with closing(BenchToken2Wav(model.models, settings)) as token2wav:
        reset_peaks(model.models.device)
        for name, load in runtimes.items():
            say(f"loading {name} …")

            def keep(size: int, job: Job, samples: Samples, name: str = name) -> None:
                if folder is not None:
                    kept = folder / f"{name}-{size}"
                    kept.mkdir(exist_ok=True)
                    write_audio(kept / f"{job.id}.wav", samples, token2wav.sample_rate)

            with closing(load()) as runtime:
                rig = BatchRig(name, runtime, token2wav.waves, token2wav.sample_rate, keep)
                for size in sizes:
                    say(f"{name}, batches of {size} …")
                    found.append(rig.measure(jobs, size, token2wav_size or size))
    return found


_TOGETHER = 8
"""Batch size of the language model in `decode`, which is not timed."""


def decode(model: BenchModel, jobs: Sequence[Job], settings: EngineSettings) -> list[TokenSpeech]:
    with closing(OwnModel(model.language_model(), settings, min(len(jobs), _TOGETHER))) as backend:
        tokens = backend.generate([job.prompt for job in jobs])
    return [TokenSpeech(job.id, tuple(said), job.voice, job.seed) for job, said in zip(jobs, tokens, strict=True)]


def speak_chunks(
    speeches: Sequence[TokenSpeech],
    cuts: Sequence[Sequence[Cut]],
    token2wav: BenchToken2Wav,
    folder: Path | None,
    say: Say,
) -> list[ChunkedSpeech]:
    """Warm up with the first speech, then time all, in chunks and at once; folder: where the audio is saved."""
    say("warming up …")
    chunked.speak_chunked(token2wav, speeches[0], cuts[0])
    reset_peaks(token2wav.engine.models.device)
    spoken = []
    for number, (speech, cut) in enumerate(zip(speeches, cuts, strict=True), start=1):
        say(f"speaking … {number} of {len(speeches)}")
        token2wav.hear(speech.voice)
        spoken.append(one := chunked.speak_chunked(token2wav, speech, cut))
        if folder is not None:
            write_audio(folder / f"{speech.id}.wav", one.samples, one.sample_rate)
            write_audio(folder / f"{speech.id}.whole.wav", one.whole, one.sample_rate)
    return spoken
