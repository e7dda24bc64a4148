"""Loads two halves of a model separately for benchmarks: the language model in a runtime, and token2wav."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.engine.backends import LM_BACKENDS
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
from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency
from vivavoce.frontend.audio.encode import write_audio
from vivavoce.frontend.front_end import FrontEnd, load_front_end
from vivavoce.frontend.model_choice import choose_device, choose_dtype, model_folder
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.extract import AudioSource
from vivavoce.frontend.voices.registry import VoiceRegistry
from vivavoce.frontend.voices.stores import open_voice_store
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce.models.build import LanguageConfig, LanguageModel, Models, build_language_model, build_models
from vivavoce.models.generations import MAX_FRAMES
from vivavoce_bench import chunked
from vivavoce_bench.batches import BatchFigures, Job, Samples, TokenBackend, measure_batches
from vivavoce_bench.chunked import ChunkedSpeech, Cut, TokenSpeech
from vivavoce_bench.hardware import reset_peaks
from vivavoce_export.hf_folder import CONFIG, SPEECH_START, added_ids, is_hugging_face
from vivavoce_export.merged_folder import merged_folder
from vivavoce_export.merged_lm import HEAD_BIAS, open_merged_lm
from vivavoce_runtimes.merged_vocabulary import MergedVocabulary
from vivavoce_runtimes.streamed_lm import merged_ids
from vivavoce_triton.client.utterance import Utterance


@dataclass(frozen=True, eq=False)
class BenchModel:
    """The flow, vocoder, front end and voices of one model. The language model is loaded on demand."""

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

        voice: the voice for texts without a recording; if None, the model's first voice.
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
        # The minimum length is one token for all texts and in all runtimes, so that runtimes can be compared.
        sampling = SamplingParams(min_ratio=0.0, exact_tokens=exact_tokens)
        room = config.rates.tokens_in(MAX_FRAMES) - len(voice.flow_tokens)
        run = plain_run(config.lm, SegmentRequest(voice, text=ids, sampling=sampling), official=False, room=room)
        return TokenRequest(run.rows, run.forced_at, run.min_tokens, seed=seed, speaker=run.speaker)


class BenchToken2Wav:
    """Turns speech tokens into samples, [n] float32 on the host, with an engine that has no language model.

    streams: whether `chunks` will be used, for which the flow keeps its state. Voices are `Conditioning`s.
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
        """Compute and cache the flow's state for the prompt of a voice."""
        few = (0,) * 8
        list(self.chunks(TokenSpeech("", few, voice, 0), [Cut(len(few), len(few), final=True)]))

    def chunks(self, speech: TokenSpeech, cuts: Sequence[Cut]) -> Iterator[Samples]:
        """Yield the samples of each chunk. A chunk is computed when the caller asks for it.

        The time for the voice's prompt is part of the first chunk, unless `hear` was called before.
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


def measure_runtimes(
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

    token2wav_size: batch size of token2wav, or None for the language model's size; folder: where the audio is saved.
    """
    found: list[BatchFigures] = []
    with closing(BenchToken2Wav(model.models, settings)) as token2wav:
        rate = token2wav.sample_rate
        reset_peaks(model.models.device)
        for name, load in runtimes.items():
            say(f"loading {name} …")
            with closing(load()) as runtime:
                for size in sizes:
                    say(f"{name}, batches of {size} …")
                    keep = partial(_keep, None if folder is None else folder / f"{name}-{size}", rate)
                    sides = size, token2wav_size or size
                    found.append(measure_batches(name, runtime, token2wav.waves, rate, jobs, *sides, keep))
    return found


def _keep(folder: Path | None, sample_rate: int, job: Job, samples: Samples) -> None:
    if folder is not None:
        folder.mkdir(exist_ok=True)
        write_audio(folder / f"{job.id}.wav", samples, sample_rate)


_TOGETHER = 8
"""Batch size of the language model in `decode`; the time of `decode` is not measured."""


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
    """Warm up with the first speech; then time all speeches, in chunks and at once. folder: where audio is saved."""
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


_MEMORY_SHARE = 0.5
"""The language model's share of the device memory. The flow and the vocoder use the rest."""


_NEEDS = {
    "vllm": ("vllm", "pip install 'vllm>=0.32,<0.34' into an environment of its own"),
    "trtllm": ("tensorrt_llm", "run in NVIDIA's TensorRT-LLM or Triton (-trtllm-python-py3) container"),
}


def check_backends(names: Sequence[str]) -> list[str]:
    """Check names of backends, and remove duplicates. `InvalidRequest`: unknown. `MissingDependency`: no package."""
    for name in names:
        if name not in LM_BACKENDS:
            raise InvalidRequest(f"backend: {name!r} is unknown; use one of {', '.join(LM_BACKENDS)}")
        package, remedy = _NEEDS.get(name, ("", ""))
        if package and find_spec(package) is None:
            raise MissingDependency(f"backend: {name} needs the package {package}, which is not installed; {remedy}")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class BackendSampling:
    """Sampling parameters of a TensorRT engine; the defaults are from CosyVoice2's published Triton deployment."""

    top_p: float = 0.95
    top_k: int = 50
    temperature: float = 0.8
    repetition_penalty: float = 1.1

    def describe(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items())


def merged_model(model: BenchModel, name_or_path: str | None) -> str:
    """Return the given folder or hub name. If none is given, export the model with `merged_folder`.

    `CheckpointError`: the folder belongs to another model.
    """
    if name_or_path is None:
        return str(merged_folder(model.folder, model.models.dtype, model.variant))
    if Path(name_or_path).is_dir():
        _check_fits(Path(name_or_path), model.vocabulary)
    return name_or_path


def _check_fits(folder: Path, vocabulary: MergedVocabulary) -> None:
    """Check the first speech id, because a folder of another model would give wrong speech without an error."""
    if not is_hugging_face(folder):
        raise CheckpointError(
            f"llm_model_name_or_path: {str(folder)!r} has no {CONFIG}; make the folder with `vivavoce export hf`"
        )
    found = added_ids(folder).get(SPEECH_START)
    if found is not None and found != vocabulary.speech(0):
        raise CheckpointError(
            f"llm_model_name_or_path: speech ids begin at {found} in {str(folder)!r}, but at {vocabulary.speech(0)} in "
            "this model; make the folder with `vivavoce export hf`"
        )


class OwnModel:
    sampling = "repetition-aware, as the model's configuration says"

    def __init__(self, model: LanguageModel, settings: EngineSettings, batch_size: int) -> None:
        self._engine = Engine(model, replace(settings, slots=batch_size))
        self._engine.warm_up()

    def generate(self, prompts: Sequence[TokenRequest]) -> list[list[int]]:
        handles = [self._engine.submit(one) for one in prompts]
        return [list(handle.result().tokens[0]) for handle in handles]

    def close(self) -> None:
        self._engine.close()


class TensorRTModel:
    """The merged model as an engine built by trtllm-build, for TensorRT-LLM releases that still run such engines.

    bias: [padded_size] float32, added to the logits; −∞ at ids that are not speech.
    """

    def __init__(
        self,
        vocabulary: MergedVocabulary,
        bias: Tensor,
        engine_dir: Path,
        sampling: BackendSampling = BackendSampling(),
    ) -> None:
        package = import_module("tensorrt_llm")
        cache = import_module("tensorrt_llm.llmapi").KvCacheConfig(free_gpu_memory_fraction=_MEMORY_SHARE)
        self._vocabulary, self._bias = vocabulary, bias
        self._drawing, self._parameters = asdict(sampling), package.SamplingParams
        self.sampling = sampling.describe()
        # The dtype and the limits were fixed when the engine was built.
        self._llm = _engine_class(package)(model=str(engine_dir), skip_tokenizer_init=True, kv_cache_config=cache)

    def generate(self, prompts: Sequence[TokenRequest]) -> list[list[int]]:
        vocabulary = self._vocabulary
        parameters = [
            self._parameters(
                **self._drawing,
                seed=prompt.seed,
                min_tokens=prompt.min_tokens,
                max_tokens=prompt.max_tokens,
                end_id=vocabulary.eos_ids[0],
                pad_id=vocabulary.eos_ids[0],
                stop_token_ids=list(vocabulary.eos_ids),
                embedding_bias=self._bias,
                detokenize=False,
            )
            for prompt in prompts
        ]
        inputs = [merged_ids(vocabulary, prompt.rows) for prompt in prompts]
        given = self._llm.generate(inputs, parameters, use_tqdm=False)
        return [self._speech(one.outputs[0].token_ids) for one in given]

    def _speech(self, ids: Sequence[int]) -> list[int]:
        """Return the speech tokens before the first merged id of another kind; cut long silences as our engine does."""
        said = [one - self._vocabulary.text_size for one in takewhile(self._vocabulary.is_speech, ids)]
        silent = self._vocabulary.own.silent
        return [said[place] for place in silent.spoken(said, silent.run_at_start)[0]]

    def close(self) -> None:
        self._llm.shutdown()


def _engine_class(package: Any) -> Any:
    """Return TensorRT-LLM's class that runs engines, which is not the default class since TensorRT-LLM 1.0."""
    try:
        return import_module("tensorrt_llm._tensorrt_engine").LLM
    except ImportError:
        return package.LLM


def open_backend(
    backend: str,
    model: BenchModel,
    settings: EngineSettings,
    batch_size: int,
    merged: str | None = None,
    engine_dir: Path | None = None,
    sampling: BackendSampling = BackendSampling(),
) -> TokenBackend:
    """Load a runtime. `torch` reads the model's folder; all others read the merged model. Only engines use `sampling`.

    batch_size: the largest batch; merged: see `merged_model`. `MissingDependency`: the package has an untested version;
    `CheckpointError`: the folder belongs to another model.
    """
    if backend == "torch":
        return OwnModel(model.language_model(), settings, batch_size)
    folder = merged_model(model, merged)
    if backend == "trtllm" and engine_dir is not None:
        bias = open_merged_lm(model.folder, model.vocabulary.text_size, model.variant).read(HEAD_BIAS)
        return TensorRTModel(model.vocabulary, bias, engine_dir, sampling)
    models = model.models  # a model without the language model's weights
    config = LanguageConfig(models.config.lm, models.config.generation)
    alone = LanguageModel(config, models.lm, models.device, models.dtype, Path(folder))
    return OwnModel(alone, replace(settings, lm_backend=backend), batch_size)
