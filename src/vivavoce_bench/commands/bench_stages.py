"""`vivavoce bench offline` and `vivavoce bench streaming`: the language model alone, and its tokens to sound."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter
from vivavoce.cli.flags import flag
from vivavoce.cli.model import EngineChoice, ModelChoice, note_if_no_real_model
from vivavoce.errors import InvalidRequest, UnsupportedModel
from vivavoce_bench.commands.figures import check_report_places, print_figures
from vivavoce_triton.client.utterance import Utterance, check_utterances, read_dataset, read_manifest

if TYPE_CHECKING:
    from vivavoce_bench.batches import BatchFigures, Job, Samples
    from vivavoce_bench.chunked import ChunkedSpeech, Cut, Strategy, TokenSpeech
    from vivavoce_bench.commands.bench_backends import Backend
    from vivavoce_bench.commands.bench_model import BenchModel, BenchToken2Wav

OFFLINE_EXAMPLES = (
    "vivavoce bench offline",
    "vivavoce bench offline --backend torch --backend hf --batch-size 4,1 -n 8 --json offline.json",
    "vivavoce bench offline --model CosyVoice2-0.5B --manifest meta.lst --output-dir speech --plot offline.png",
)
STREAMING_EXAMPLES = (
    "vivavoce bench streaming --output-dir chunks",
    "vivavoce bench streaming --strategy exponential --chunk-size 15 -n 8 --json streaming.json",
    "vivavoce bench streaming --recording me.wav --overlap 3",
)
BATCH_SIZES = (16, 8, 4, 2, 1)
DEFAULT_TEXTS, DEFAULT_SPEECHES = 16, 4
"""Numbers of built-in sentences: enough for the largest batch, and for `streaming`."""
_LARGEST_BATCH = 256
_TOGETHER = 8
"""Texts in one batch of the language model for `streaming`; its time is not measured."""


@dataclass(frozen=True)
class StageModel(ModelChoice):
    """`ModelChoice` with the flag of earlier scripts."""

    model: str | None = flag(
        flags.MODEL_HELP, "NAME|FOLDER", "--model", "-m", "--token2wav-path", envvar=flags.MODEL_VARIABLE
    )


@dataclass(frozen=True)
class TextChoice:
    num_texts: int | None = flag("Take the first texts only.  [default: all of a list]", "NUMBER", "-n", min=1)
    text_file: Path | None = flag("One text per line.  [default: built-in English sentences]", "FILE", "-f")
    manifest: Path | None = flag(
        "Lines of id|prompt text|prompt recording|text, or JSON.", "FILE", "--manifest", "--manifest-path"
    )
    dataset: str | None = flag(
        "With the columns id, prompt_text, prompt_audio, target_text; needs datasets.", "NAME", "--huggingface-dataset"
    )
    split: str | None = flag("Of the data set.  [default: train]", "NAME", "--split-name")
    voice: flags.VoiceOption = None
    transcript: flags.TranscriptOption = ""

    @property
    def source(self) -> str:
        return str(self.dataset or self.manifest or self.text_file or "built in")

    @property
    def built_in(self) -> bool:
        return not (self.dataset or self.manifest or self.text_file)

    def check(self) -> None:
        """Raises InvalidRequest for options that exclude one another."""
        given = {"--text-file": self.text_file, "--manifest": self.manifest, "--huggingface-dataset": self.dataset}
        named = [option for option, value in given.items() if value is not None]
        if len(named) > 1:
            raise InvalidRequest(f"texts: {' and '.join(named)} exclude one another; leave all but one out")
        if self.split is not None and self.dataset is None:
            raise InvalidRequest("split_name: belongs to a data set; name it with --huggingface-dataset")
        if self.voice is not None and (self.manifest or self.dataset):
            raise InvalidRequest(f"voice: each text of {self.source!r} has its own; leave --voice out")
        if self.transcript and self.voice is None:
            raise InvalidRequest("transcript: belongs to a recording; name it with --voice")

    def read(self, built_in: int = DEFAULT_TEXTS) -> list[Utterance]:
        """built_in: number of built-in sentences where none was given; a list is read whole."""
        from vivavoce_bench.load import read_texts
        from vivavoce_bench.texts import SENTENCES

        if self.dataset is not None:
            found = read_dataset(self.dataset, self.split or "train", self.num_texts)
        elif self.manifest is not None:
            found = read_manifest(self.manifest, field="list")
        else:
            texts = SENTENCES if self.text_file is None else read_texts(self.text_file)
            found = [Utterance(f"{number:04d}", text) for number, text in enumerate(texts, start=1)]
        check_utterances(found)
        return found[: self.num_texts or (built_in if self.built_in else None)]


@dataclass(frozen=True)
class StageRun:
    tokens: flags.TokensOption = None
    seed: int = flag("Of the first text; the others follow.", "NUMBER", default=0)
    output_dir: Path | None = flag("Keep the audio as WAV files here.", "FOLDER")
    json_file: flags.JsonFileOption = None
    kernels: flags.KernelsOption = None

    def check(self) -> None:
        from vivavoce.engine.request import SamplingParams
        from vivavoce.frontend.speech import check_seed

        check_seed(self.seed)
        SamplingParams(exact_tokens=self.tokens)
        check_report_places(self.json_file, folder=self.output_dir)

    def jobs(self, model: BenchModel, texts: TextChoice, lines: Sequence[Utterance]) -> list[Job]:
        return model.jobs(lines, self.seed, self.tokens, model.voice(texts.voice, texts.transcript))

    def settings(self, model: BenchModel, **others: Any) -> dict[str, Any]:
        from vivavoce_bench.commands.bench_model import machine, model_keys, resources

        return {
            **model_keys(shlex.join(["vivavoce", *sys.argv[1:]]), model.front_end.card, model.models.dtype),
            "seed": self.seed,
            "exact_tokens": self.tokens,
            "kernels": self.kernels,
            **others,
            **machine(model.models.device),
            **resources(model.models.device),
        }


@dataclass(frozen=True)
class Batches:
    backend: list[str] | None = flag("torch, hf, vllm or trtllm; may be repeated.  [default: torch, our own]", "NAME")
    batch_size: list[str] | None = flag("Texts at once, such as 16,4.  [default: 16,8,4,2,1]", "NUMBERS")
    token2wav_batch_size: int | None = flag(
        "Of the second half, tokens to samples.  [default: the same]", "NUMBER", min=1, max=_LARGEST_BATCH
    )
    llm_model: str | None = flag(
        "The merged language model of hf, vllm and trtllm.  [default: made from the model, and kept]",
        "NAME|FOLDER",
        "--llm-model-name-or-path",
    )
    engine_dir: Path | None = flag("An engine that trtllm-build made.", "FOLDER")
    plot: flags.PlotOption = None

    def backends(self) -> list[Backend]:
        """Raises InvalidRequest for an unknown runtime or an unused option, MissingDependency for a missing package."""
        from vivavoce_bench.commands.bench_backends import Backend, check_installed, parse_backends

        found = parse_backends(self.backend or [Backend.TORCH.value])
        if self.engine_dir is not None and Backend.TRTLLM not in found:
            raise InvalidRequest("engine_dir: only the backend trtllm runs engines; add --backend trtllm")
        if self.engine_dir is not None and not self.engine_dir.is_dir():
            raise InvalidRequest(f"engine_dir: {str(self.engine_dir)!r} is not a folder; name the one of trtllm-build")
        if self.llm_model is not None and found == [Backend.TORCH]:
            raise InvalidRequest(
                "llm_model_name_or_path: torch reads the model's own folder; add a --backend that reads a merged one "
                "(hf, vllm or trtllm), or leave it out"
            )
        for backend in found:
            check_installed(backend)
        return found

    def sizes(self, num_texts: int | None = None) -> list[int]:
        """The batch sizes; by default all that can be filled.

        num_texts: None: not known yet. `InvalidRequest`: a size is out of its limits, or larger than the number of
        texts.
        """
        parts = [part for one in self.batch_size or () for part in re.split(r"[,\s]+", one.strip())]
        sizes = [int(part) if part.isdecimal() else 0 for part in parts]
        for part, size in zip(parts, sizes, strict=True):
            if not 1 <= size <= _LARGEST_BATCH:
                raise InvalidRequest(
                    f"batch_size: {part!r} is not a number in 1 … {_LARGEST_BATCH}; write some such as 16,8,1"
                )
        if num_texts is None:
            num_texts = _LARGEST_BATCH
        if max(sizes, default=0) > num_texts:
            raise InvalidRequest(
                f"batch_size: {max(sizes)} is more than the {num_texts} texts; give more, or take it out"
            )
        return list(dict.fromkeys(sizes)) or [size for size in BATCH_SIZES if size <= num_texts]


def offline(
    batches: Batches, texts: TextChoice, run: StageRun, model: StageModel, quiet: flags.QuietOption = False
) -> None:
    """Speak texts in batches: seconds of the language model and of token2wav, by runtime and batch size."""
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        backends = batches.backends()
        batches.sizes()
        run.check()
        texts.check()
        check_report_places(None, batches.plot)
        from vivavoce_bench.batches import HEADER, batch_report, draw_batches
        from vivavoce_bench.commands.bench_model import BenchModel
    lines = texts.read()
    sizes = batches.sizes(len(lines))
    with reporter.working("loading …") as say:
        loaded = BenchModel.load(model)
        say("reading texts and voices …")
        jobs = run.jobs(loaded, texts, lines)
        runs = _measure_batches(batches, backends, sizes, jobs, loaded, run, say)
    settings = run.settings(loaded, llm_model=batches.llm_model, text_source=texts.source)
    print_figures(batch_report(settings, runs), run.json_file, (HEADER, [one.row() for one in runs]))
    if batches.plot is not None:
        draw_batches(runs, batches.plot)
    note_if_no_real_model(loaded.front_end.card, reporter)


def _measure_batches(
    batches: Batches,
    backends: Sequence[Backend],
    sizes: Sequence[int],
    jobs: Sequence[Job],
    model: BenchModel,
    run: StageRun,
    say: Any,
) -> list[BatchFigures]:
    from vivavoce.frontend.audio.encode import write_audio
    from vivavoce_bench.batches import BatchRig
    from vivavoce_bench.commands.bench_backends import open_backend
    from vivavoce_bench.commands.bench_model import BenchToken2Wav, reset_peaks

    settings = EngineChoice(kernels=run.kernels).settings()
    found: list[BatchFigures] = []
    with closing(BenchToken2Wav(model.models, settings)) as token2wav:
        reset_peaks(model.models.device)
        for backend in backends:
            say(f"loading {backend.value} …")

            def keep(size: int, job: Job, samples: Samples, name: str = backend.value) -> None:
                if run.output_dir is not None:
                    place = run.output_dir / f"{name}-{size}"
                    place.mkdir(exist_ok=True)
                    write_audio(place / f"{job.id}.wav", samples, token2wav.sample_rate)

            with closing(
                open_backend(backend, model, settings, max(sizes), batches.llm_model, batches.engine_dir)
            ) as runtime:
                rig = BatchRig(backend.value, runtime, token2wav.waves, token2wav.sample_rate, keep)
                for size in sizes:
                    say(f"{backend.value}, batches of {size} …")
                    found.append(rig.measure(jobs, size, batches.token2wav_batch_size or size))
    return found


@dataclass(frozen=True)
class Chunks:
    chunk_size: int = flag("Speech tokens of the first chunk: 25 are a second.", "NUMBER", default=25)
    overlap: int = flag("Tokens that chunks share and fade over.  [default: 0, seamless joins]", "NUMBER", default=0)
    strategy: str = flag("equal, or exponential: each chunk twice the one before.", "NAME", default="equal")
    recording: list[Path] | None = flag("Speak the tokens of a recording instead of texts; may be repeated.", "FILE")
    memory: flags.MemoryOption = None

    def check(self, texts: TextChoice, tokens: int | None) -> Strategy:
        from vivavoce_bench.chunked import Strategy, cuts

        try:
            strategy = Strategy(self.strategy)
        except ValueError:
            known = ", ".join(one.value for one in Strategy)
            raise InvalidRequest(f"strategy: {self.strategy!r} is unknown; use one of {known}") from None
        cuts(1, self.chunk_size, strategy, 0)
        if not 0 <= self.overlap < self.chunk_size:
            raise InvalidRequest(
                f"overlap: {self.overlap} is outside of 0 … {self.chunk_size - 1}; a chunk has {self.chunk_size} tokens"
            )
        if self.recording and (not texts.built_in or texts.num_texts or tokens):
            raise InvalidRequest(
                "recording: its tokens are spoken, no text is; leave texts, their number and --tokens out"
            )
        for path in self.recording or ():
            if not path.is_file():
                raise InvalidRequest(f"recording: {str(path)!r} is not a file; check the path")
        return strategy


def streaming(
    chunks: Chunks, texts: TextChoice, run: StageRun, model: StageModel, quiet: flags.QuietOption = False
) -> None:
    """Turn speech tokens into sound chunk by chunk: time to the first one and to each, and what joins sound like."""
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        run.check()
        texts.check()
        strategy = chunks.check(texts, run.tokens)
        from vivavoce_bench.chunked import SCHEMA, chunk_figures, chunk_rows, cuts, join_figures
        from vivavoce_bench.commands.bench_model import BenchModel, BenchToken2Wav
        from vivavoce_bench.measure import rounded

        engine = EngineChoice(memory=chunks.memory, kernels=run.kernels)
    with reporter.working("loading …") as say:
        loaded = BenchModel.load(model)
        if not loaded.models.config.rates.frames_per_token:
            raise UnsupportedModel(
                "model: CosyVoice 1 makes its chunks as officially, of no other size; measure its streams with "
                "`vivavoce bench`"
            )
        say("making speech tokens …")
        if chunks.recording:
            speeches = _recorded(chunks.recording, texts, run, loaded)
        else:
            speeches = _decoded(texts, run, engine, loaded)
        lookahead = loaded.models.config.flow.encoder.lookahead
        cut = [cuts(len(one.tokens), chunks.chunk_size, strategy, lookahead) for one in speeches]
        with closing(
            BenchToken2Wav(loaded.models, engine.settings(), streams=True, overlap=chunks.overlap)
        ) as token2wav:
            spoken = _speak_all(speeches, cut, token2wav, run, say)
    found = {**chunk_figures(spoken), **join_figures(spoken, token2wav.fade)}
    settings = run.settings(
        loaded,
        chunk_size=chunks.chunk_size,
        overlap=chunks.overlap,
        strategy=strategy.value,
        lookahead=lookahead,
        text_source="recordings" if chunks.recording else texts.source,
        memory_gb=chunks.memory,
    )
    keys = {"schema": SCHEMA, **settings, **found, "speeches": [one.to_json() for one in spoken]}
    print_figures(rounded(keys), run.json_file, chunk_rows(found))
    note_if_no_real_model(loaded.front_end.card, reporter)


def _decoded(texts: TextChoice, run: StageRun, engine: EngineChoice, model: BenchModel) -> list[TokenSpeech]:
    from vivavoce_bench.chunked import TokenSpeech
    from vivavoce_bench.commands.bench_backends import OwnModel

    jobs = run.jobs(model, texts, texts.read(DEFAULT_SPEECHES))
    with closing(OwnModel(model.language_model(), engine.settings(), min(len(jobs), _TOGETHER))) as backend:
        tokens = backend.generate([job.prompt for job in jobs])
    return [TokenSpeech(job.id, tuple(said), job.voice, job.seed) for job, said in zip(jobs, tokens, strict=True)]


def _recorded(recordings: Sequence[Path], texts: TextChoice, run: StageRun, model: BenchModel) -> list[TokenSpeech]:
    from vivavoce_bench.chunked import TokenSpeech

    voice, extractor = model.voice(texts.voice, texts.transcript), model.front_end.extractor
    return [
        TokenSpeech(f"{place + 1:04d}", tuple(extractor.speech_tokens(path).tolist()), voice, run.seed + place)
        for place, path in enumerate(recordings)
    ]


def _speak_all(
    speeches: Sequence[TokenSpeech], cut: Sequence[Sequence[Cut]], token2wav: BenchToken2Wav, run: StageRun, say: Any
) -> list[ChunkedSpeech]:
    """Speak every speech both ways, after the first one was spoken once to warm up."""
    from vivavoce.frontend.audio.encode import write_audio
    from vivavoce_bench.chunked import speak_chunked
    from vivavoce_bench.commands.bench_model import reset_peaks

    say("warming up …")
    speak_chunked(token2wav, speeches[0], cut[0])
    reset_peaks(token2wav.engine.models.device)
    spoken = []
    for number, speech in enumerate(speeches):
        say(f"speaking … {number + 1} of {len(speeches)}")
        token2wav.hear(speech.voice)
        one = speak_chunked(token2wav, speech, cut[number])
        spoken.append(one)
        if run.output_dir is not None:
            write_audio(run.output_dir / f"{speech.id}.wav", one.joined, one.sample_rate)
            write_audio(run.output_dir / f"{speech.id}.whole.wav", one.whole, one.sample_rate)
    return spoken
