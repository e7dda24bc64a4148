"""`vivavoce bench offline` and `vivavoce bench streaming`: benchmarks of the language model and token2wav."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter
from vivavoce.cli.flags import flag
from vivavoce.cli.model import EngineChoice, ModelChoice, note_if_no_real_model
from vivavoce.errors import InvalidRequest, UnsupportedModel
from vivavoce_bench.commands.options import JsonFileOption, PlotOption, TokensOption, check_report_places, print_figures
from vivavoce_triton.client.utterance import Utterance, check_utterances, read_dataset, read_manifest

if TYPE_CHECKING:
    from vivavoce_bench.batches import Job
    from vivavoce_bench.chunked import Strategy, TokenSpeech
    from vivavoce_bench.halves import BenchModel

OFFLINE_EXAMPLES = (
    "vivavoce bench offline",
    "vivavoce bench offline --batch-size 4,1 -n 8 --json offline.json",
    "vivavoce bench offline --model CosyVoice2-0.5B --manifest meta.lst --output-dir speech --plot offline.png",
)
STREAMING_EXAMPLES = (
    "vivavoce bench streaming --output-dir chunks",
    "vivavoce bench streaming --strategy exponential --chunk-size 15 -n 8 --json streaming.json",
    "vivavoce bench streaming --recording me.wav --chunk-size 50",
)
BATCH_SIZES = (16, 8, 4, 2, 1)
DEFAULT_TEXTS, DEFAULT_SPEECHES = 16, 4
"""Default numbers of built-in sentences: for `offline` (enough for the largest batch), and for `streaming`."""
_LARGEST_BATCH = 256


@dataclass(frozen=True)
class StageModel(ModelChoice):
    model: str | None = flag(
        flags.MODEL_HELP, "NAME|FOLDER", "--model", "-m", "--token2wav-path", envvar=flags.MODEL_VARIABLE
    )


@dataclass(frozen=True)
class TextChoice:
    num_texts: int | None = flag(
        "Number of texts to use, from the start.  [default: all of a list]", "NUMBER", "-n", min=1
    )
    text_file: Path | None = flag("One text per line.  [default: built-in English sentences]", "FILE", "-f")
    manifest: Path | None = flag(
        "Lines of id|prompt text|prompt recording|text, or JSON.", "FILE", "--manifest", "--manifest-path"
    )
    dataset: str | None = flag(
        "Data set with the columns id, prompt_text, prompt_audio, target_text; needs datasets.",
        "NAME",
        "--huggingface-dataset",
    )
    split: str | None = flag("Split of the data set.  [default: train]", "NAME", "--split-name")
    voice: flags.VoiceOption = None
    transcript: flags.TranscriptOption = ""

    @property
    def source(self) -> str:
        return str(self.dataset or self.manifest or self.text_file or "built in")

    @property
    def built_in(self) -> bool:
        return not (self.dataset or self.manifest or self.text_file)

    def check(self) -> None:
        """Raises InvalidRequest for options that exclude each other."""
        given = {"--text-file": self.text_file, "--manifest": self.manifest, "--huggingface-dataset": self.dataset}
        named = [option for option, value in given.items() if value is not None]
        if len(named) > 1:
            raise InvalidRequest(f"texts: {' and '.join(named)} exclude each other; give one of them")
        if self.split is not None and self.dataset is None:
            raise InvalidRequest("split_name: belongs to a data set; name it with --huggingface-dataset")
        if self.voice is not None and (self.manifest or self.dataset):
            raise InvalidRequest(f"voice: each text of {self.source!r} has its own; leave --voice out")
        if self.transcript and self.voice is None:
            raise InvalidRequest("transcript: belongs to a recording; name it with --voice")

    def read(self, built_in: int = DEFAULT_TEXTS) -> list[Utterance]:
        """Read the texts. built_in: number of built-in sentences to use if the options give no number."""
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
    tokens: TokensOption = None
    seed: int = flag("Seed of the first text; each later text has the next seed.", "NUMBER", default=0)
    output_dir: Path | None = flag("Folder for the audio, as WAV files.", "FOLDER")
    json_file: JsonFileOption = None
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
        from vivavoce_bench.hardware import resources, run_keys

        card, models = model.front_end.card, model.models
        return {
            **run_keys(shlex.join(["vivavoce", *sys.argv[1:]]), card, models.dtype, models.device),
            "seed": self.seed,
            "exact_tokens": self.tokens,
            "kernels": self.kernels,
            **others,
            **resources(models.device),
        }


@dataclass(frozen=True)
class Batches:
    backend: list[str] | None = flag(
        "Runtime: torch (vivavoce), vllm or trtllm; may be repeated.  [default: torch]", "NAME"
    )
    batch_size: list[str] | None = flag("Batch sizes, such as 16,4.  [default: 16,8,4,2,1]", "NUMBERS")
    token2wav_batch_size: int | None = flag(
        "Batch size of token2wav.  [default: --batch-size]", "NUMBER", min=1, max=_LARGEST_BATCH
    )
    llm_model: str | None = flag(
        "Merged language model for vllm and trtllm.  [default: exported from the model]",
        "NAME|FOLDER",
        "--llm-model-name-or-path",
    )
    engine_dir: Path | None = flag("Folder of an engine made by trtllm-build.", "FOLDER")
    plot: PlotOption = None

    def backends(self) -> list[str]:
        """Return the runtimes. InvalidRequest: unknown runtime or unused option. MissingDependency: missing package."""
        from vivavoce_bench.halves import check_backends

        found = check_backends(self.backend or ["torch"])
        if self.engine_dir is not None and "trtllm" not in found:
            raise InvalidRequest("engine_dir: only the backend trtllm runs engines; add --backend trtllm")
        if self.engine_dir is not None and not self.engine_dir.is_dir():
            raise InvalidRequest(f"engine_dir: {str(self.engine_dir)!r} is not a folder; name an engine folder")
        if self.llm_model is not None and found == ["torch"]:
            raise InvalidRequest(
                "llm_model_name_or_path: torch does not read a merged model; add --backend vllm or --backend trtllm, "
                "or leave it out"
            )
        return found

    def sizes(self, num_texts: int | None = None) -> list[int]:
        """Return the batch sizes; by default, all usual sizes up to the number of texts.

        num_texts: None if it is unknown. `InvalidRequest`: a size is outside of its limits, or larger than num_texts.
        """
        parts = [part for one in self.batch_size or () for part in re.split(r"[,\s]+", one.strip())]
        sizes = [int(part) if part.isdecimal() else 0 for part in parts]
        for part, size in zip(parts, sizes, strict=True):
            if not 1 <= size <= _LARGEST_BATCH:
                raise InvalidRequest(
                    f"batch_size: {part!r} is not a number in 1 … {_LARGEST_BATCH}; write numbers such as 16,8,1"
                )
        num_texts = num_texts or _LARGEST_BATCH
        if max(sizes, default=0) > num_texts:
            raise InvalidRequest(
                f"batch_size: {max(sizes)} is more than the {num_texts} texts; give more texts, or leave this size out"
            )
        return list(dict.fromkeys(sizes)) or [size for size in BATCH_SIZES if size <= num_texts]


def offline(
    batches: Batches, texts: TextChoice, run: StageRun, model: StageModel, quiet: flags.QuietOption = False
) -> None:
    """Measure the language model and token2wav on batches of texts, by runtime and batch size."""
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        backends = batches.backends()
        batches.sizes()
        run.check()
        texts.check()
        check_report_places(None, batches.plot)
        from vivavoce_bench.batches import HEADER, batch_report, draw_batches
        from vivavoce_bench.halves import BenchModel, measure_runtimes, open_backend
    lines = texts.read()
    sizes, settings = batches.sizes(len(lines)), EngineChoice(kernels=run.kernels).settings()
    with reporter.working("loading …") as say:
        loaded = BenchModel.load(**vars(model))
        say("reading texts and voices …")
        jobs = run.jobs(loaded, texts, lines)
        how = (loaded, settings, max(sizes), batches.llm_model, batches.engine_dir)
        runtimes = {backend: partial(open_backend, backend, *how) for backend in backends}
        size = batches.token2wav_batch_size
        runs = measure_runtimes(loaded, jobs, runtimes, sizes, size, settings, run.output_dir, say)
    keys = run.settings(loaded, llm_model=batches.llm_model, text_source=texts.source)
    print_figures(batch_report(keys, runs), run.json_file, (HEADER, [one.row() for one in runs]))
    if batches.plot is not None:
        draw_batches(runs, batches.plot)
    note_if_no_real_model(loaded.front_end.card, reporter)


@dataclass(frozen=True)
class Chunks:
    chunk_size: int = flag("Speech tokens of the first chunk (25 per second).", "NUMBER", default=25)
    strategy: str = flag("Chunk sizes: equal, or exponential (each chunk is twice as long).", "NAME", default="equal")
    recording: list[Path] | None = flag(
        "Use the speech tokens of a recording instead of texts; may be repeated.", "FILE"
    )
    memory: flags.MemoryOption = None

    def check(self, texts: TextChoice, tokens: int | None) -> Strategy:
        from vivavoce_bench.chunked import Strategy, cuts

        try:
            strategy = Strategy(self.strategy)
        except ValueError:
            known = ", ".join(one.value for one in Strategy)
            raise InvalidRequest(f"strategy: {self.strategy!r} is unknown; use one of {known}") from None
        cuts(1, self.chunk_size, strategy, 0)
        if self.recording and (not texts.built_in or texts.num_texts or tokens):
            raise InvalidRequest("recording: its tokens replace the texts; leave texts, their number and --tokens out")
        for path in self.recording or ():
            if not path.is_file():
                raise InvalidRequest(f"recording: {str(path)!r} is not a file; check the path")
        return strategy


def streaming(
    chunks: Chunks, texts: TextChoice, run: StageRun, model: StageModel, quiet: flags.QuietOption = False
) -> None:
    """Measure token2wav chunk by chunk: time to the first chunk and to each chunk, and clicks between chunks."""
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        run.check()
        texts.check()
        strategy = chunks.check(texts, run.tokens)
        from vivavoce_bench.chunked import SCHEMA, chunk_figures, chunk_rows, cuts, join_figures
        from vivavoce_bench.halves import BenchModel, BenchToken2Wav, decode, speak_chunks
        from vivavoce_bench.measure import rounded

        settings = EngineChoice(memory=chunks.memory, kernels=run.kernels).settings()
    with reporter.working("loading …") as say:
        loaded = BenchModel.load(**vars(model))
        if not loaded.models.config.rates.frames_per_token:
            raise UnsupportedModel(
                "model: CosyVoice 1 has fixed chunk sizes; measure its streams with `vivavoce bench`"
            )
        say("making speech tokens …")
        if chunks.recording:
            speeches = _recorded(chunks.recording, texts, run, loaded)
        else:
            speeches = decode(loaded, run.jobs(loaded, texts, texts.read(DEFAULT_SPEECHES)), settings)
        lookahead = loaded.models.config.flow.encoder.lookahead
        cut = [cuts(len(one.tokens), chunks.chunk_size, strategy, lookahead) for one in speeches]
        with closing(BenchToken2Wav(loaded.models, settings, streams=True)) as token2wav:
            spoken = speak_chunks(speeches, cut, token2wav, run.output_dir, say)
    found = {**chunk_figures(spoken), **join_figures(spoken, token2wav.samples_per_frame)}
    keys = run.settings(
        loaded,
        chunk_size=chunks.chunk_size,
        strategy=strategy.value,
        lookahead=lookahead,
        text_source="recordings" if chunks.recording else texts.source,
        memory_gb=chunks.memory,
    )
    report = {"schema": SCHEMA, **keys, **found, "speeches": [one.to_json() for one in spoken]}
    print_figures(rounded(report), run.json_file, chunk_rows(found))
    note_if_no_real_model(loaded.front_end.card, reporter)


def _recorded(recordings: Sequence[Path], texts: TextChoice, run: StageRun, model: BenchModel) -> list[TokenSpeech]:
    from vivavoce_bench.chunked import TokenSpeech

    voice, extractor = model.voice(texts.voice, texts.transcript), model.front_end.extractor
    return [
        TokenSpeech(f"{index + 1:04d}", tuple(extractor.speech_tokens(path).tolist()), voice, run.seed + index)
        for index, path in enumerate(recordings)
    ]
