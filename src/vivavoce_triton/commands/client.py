"""`vivavoce client`: request an utterance from a Triton server over HTTP, or load-test the server over gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vivavoce.cli.console import Reporter, print_error
from vivavoce.cli.flags import REQUIRED, QuietOption, command, flag, group, shared
from vivavoce.cli.output import check_writable
from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.version import __version__
from vivavoce_bench.commands.evaluate import BUILT_IN_RECOGNISER, recogniser_factory, recogniser_jobs
from vivavoce_triton.client.utterance import (
    LoadMode,
    LoadOptions,
    Manner,
    Utterance,
    check_reference_text,
    read_dataset,
    read_manifest,
)

if TYPE_CHECKING:
    from vivavoce_bench.load import Outcome
    from vivavoce_triton.client.report import Report, Score

DEFAULT_MODEL = "cosyvoice2"
_RATES = tuple(f"{unit}_free{bound}" for unit in ("wer", "cer") for bound in ("", "_low", "_high"))
_QUALITY = (*_RATES, "wer_closed", "cer_closed", "per")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

app = group(
    "Request speech from a Triton server: http for one utterance, grpc for a load test.",
    'vivavoce client http --reference-audio me.wav --reference-text "What I say." --target-text "Hello."',
    "vivavoce client grpc --manifest-path meta.lst --num-tasks 4 --log-dir log",
)

_RECORDING = "A recording of the voice: wav, flac, ogg or mp3.  [default: the server's own voice]"
_ReferenceAudio = Annotated[Path | None, shared(_RECORDING, "FILE", "--reference-audio")]
_ReferenceText = Annotated[str, shared("Transcript of the recording.", "TEXT", "--reference-text")]
_MODEL = "The model: cosyvoice2, vivavoce or another with the same tensors."
_ModelName = Annotated[str, shared(_MODEL, "NAME", "--model-name")]
_Timeout = Annotated[float, shared("Timeout of a response.", "SECONDS", "--timeout")]


@dataclass(frozen=True)
class HowToSpeak:
    voice: str | None = flag("Name of a voice that the server has stored.", "NAME", "-v")
    instruct_text: str | None = flag("Instructions for the manner of speaking.", "TEXT")
    seed: int | None = flag("Random seed; equal seeds give equal audio.  [default: the server's]", "NUMBER")
    speed: float | None = flag("Speed, 0.5 to 2.0; the pitch does not change.", "NUMBER")
    reading: str | None = flag("Rules for numbers and signs: natural, official or off.", "RULES")


@dataclass(frozen=True)
class LoadFlags:
    """Options of a load test. Exactly one source of texts must be given: a text, a data set or a file."""

    server_addr: str = flag("Host of the Triton server.", "HOST", default="localhost")
    server_port: int = flag("Port of the server's gRPC interface.", "NUMBER", default=8001, min=1, max=65535)
    reference_audio: _ReferenceAudio = None
    reference_text: _ReferenceText = ""
    target_text: str | None = flag("Text of every request.", "TEXT")
    huggingface_dataset: str | None = flag("Hugging Face data set of texts; needs pip install datasets.", "NAME")
    split_name: str | None = flag("Split of the data set.  [default: its only split]", "NAME")
    manifest_path: Path | None = flag(
        "File of texts: lines name|reference text|reference recording|text, or JSON.", "FILE"
    )
    model_name: _ModelName = DEFAULT_MODEL
    num_tasks: int = flag("Concurrent users; each sends one request after another.", "NUMBER", default=1)
    requests: int | None = flag("Requests in all.  [default: one per text and user]", "NUMBER", "-n")
    warmup: int | None = flag("Requests before the measured ones.  [default: one per user]", "NUMBER")
    mode: LoadMode = flag("streaming, or offline for models that send one whole response.", default=LoadMode.STREAMING)
    chunk_overlap_duration: float = flag(
        "Audio that the server repeats at the start of each chunk; it is cross-faded.", "SECONDS", default=0.0
    )
    use_spk2info_cache: str = flag("Send no recordings: the server has the voice.", "True|False", default="False")

    def utterances(self) -> list[Utterance]:
        """Return the utterances to request. `InvalidRequest`: not exactly one source is given, or it is unreadable."""
        given = {
            "--target-text": self.target_text,
            "--manifest-path": self.manifest_path,
            "--huggingface-dataset": self.huggingface_dataset,
        }
        named = [option for option, value in given.items() if value is not None]
        if len(named) != 1:
            found = f"{' and '.join(named)} are given" if named else "no text is given"
            raise InvalidRequest(f"target_text: {found}; give one of {', '.join(given)}")
        if self.split_name is not None and self.huggingface_dataset is None:
            raise InvalidRequest("split_name: belongs to a data set; name it with --huggingface-dataset")
        if self.target_text is not None:
            check_reference_text(self.reference_audio, self.reference_text)
            return [Utterance("single", self.target_text, self.reference_audio, self.reference_text)]
        if self.reference_audio is not None or self.reference_text:
            raise InvalidRequest(f"reference_audio: {named[0]} names its own recordings; leave this and its text out")
        if self.manifest_path is not None:
            return read_manifest(self.manifest_path)
        return read_dataset(self.huggingface_dataset or "", self.split_name)

    @property
    def label(self) -> str:
        if self.manifest_path is not None:
            return self.manifest_path.stem
        if self.huggingface_dataset is not None:
            return self.split_name or self.huggingface_dataset.rpartition("/")[2]
        return "single"

    def options(self, manner: Manner, timeout_s: float, folder: Path | None) -> LoadOptions:
        """Make the options of the load test. `InvalidRequest`: the client cannot use an option."""
        cached = _TRUTHS.get(self.use_spk2info_cache.lower())
        if cached is None:
            raise InvalidRequest(f"use_spk2info_cache: {self.use_spk2info_cache!r} is unknown; write True or False")
        return LoadOptions(
            server=f"{self.server_addr}:{self.server_port}",
            utterances=self.utterances(),
            model=self.model_name,
            mode=self.mode,
            manner=manner,
            num_tasks=self.num_tasks,
            requests=self.requests,
            warmup=self.num_tasks if self.warmup is None else self.warmup,
            use_spk2info_cache=cached,
            chunk_overlap_s=self.chunk_overlap_duration,
            timeout_s=timeout_s,
            folder=folder,
        )


@dataclass(frozen=True)
class ReportFlags:
    log_interval: int = flag("Report the progress after this many requests.", "NUMBER", default=5, min=1)
    log_dir: Path | None = flag("Folder for the audio and the reports.", "FOLDER")
    compute_wer: bool = flag("Also measure the word error rate; needs vivavoce[eval].", default=False)
    recogniser: str | None = flag("Your own recogniser.  [default: pocketsphinx (English)]", "MODULE:CALLABLE")


@command(
    app,
    'vivavoce client http --reference-audio me.wav --reference-text "What I say." --target-text "Hello." --seed 1',
    'vivavoce client http --server-url gpu:8000 --model-name vivavoce --voice anna --target-text "Hello."',
    name="http",
)
def http_(
    *,
    target_text: str = flag("Text to say.", "TEXT", default=REQUIRED),
    server_url: str = flag("Triton's HTTP address, with or without http://.", "URL", default="localhost:8000"),
    reference_audio: _ReferenceAudio = None,
    reference_text: _ReferenceText = "",
    model_name: _ModelName = DEFAULT_MODEL,
    output_audio: Path = flag("WAV file to write, overwritten if it exists.", "FILE", "-o", default=Path("output.wav")),
    how: HowToSpeak,
    binary: bool = flag("Send and receive numbers in binary: smaller than JSON by far.", default=False),
    timeout: _Timeout = 120.0,
    quiet: QuietOption = False,
) -> None:
    """Request one utterance over HTTP.

    The request goes to /v2/models/NAME/infer, or to generate_stream if the model streams.
    """
    reporter = Reporter(quiet)
    check_reference_text(reference_audio, reference_text)
    with reporter.working("speaking …"):
        import time

        from vivavoce_bench.measure import write_wav
        from vivavoce_triton.client.http_client import HttpOptions, speak_http

        utterance = Utterance(output_audio.stem, target_text, reference_audio, reference_text)
        asked = HttpOptions(utterance, server_url, model_name, Manner(**vars(how)), binary, timeout)
        check_writable(output_audio, field="output_audio")
        start_s = time.perf_counter()
        audio = speak_http(asked)
        spent_s = time.perf_counter() - start_s
        write_wav(output_audio, audio.samples, audio.sample_rate)
    audio_s = len(audio.samples) / audio.sample_rate
    reporter.report(
        f"{output_audio}: {audio_s:.2f} s of audio, RTF {spent_s / audio_s:.2f} (request took {spent_s:.2f} s)"
    )


@command(
    app,
    'vivavoce client grpc --reference-audio me.wav --reference-text "What I say." --target-text "Hello."',
    "vivavoce client grpc --manifest-path meta.lst --num-tasks 4 --log-dir log --compute-wer",
    'vivavoce client grpc --use-spk2info-cache True --target-text "Hello." --num-tasks 16 --requests 200',
    name="grpc",
)
def grpc_(
    *, load: LoadFlags, how: HowToSpeak, timeout: _Timeout = 120.0, kept: ReportFlags, quiet: QuietOption = False
) -> None:
    """Load-test a Triton server over gRPC: times of chunks and whole responses, gaps, throughput.

    Needs pip install 'vivavoce[triton-client]'. The exit code is 1 if a request or the recogniser failed.
    docs/triton.md explains the figures.
    """
    import asyncio

    if kept.recogniser is not None and not kept.compute_wer:
        raise InvalidRequest("recogniser: is used with --compute-wer only; add that, or leave --recogniser out")
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        from vivavoce_triton.client.load import measure
        from vivavoce_triton.client.wire import require_tritonclient

        require_tritonclient()
        asked = load.options(Manner(**vars(how)), timeout, kept.log_dir)
        score = _scoring(asked, kept.recogniser or BUILT_IN_RECOGNISER) if kept.compute_wer else None
    ended: list[Outcome] = []

    def show(outcome: Outcome) -> None:
        ended.append(outcome)
        done = len(ended)
        working(f"asking … {done} of {asked.total}")
        if done % kept.log_interval == 0 or done == asked.total:
            reporter.report(f"{done} of {asked.total} requests, {sum(not one.ok for one in ended)} failed")

    with reporter.working("asking …") as working:
        report = asyncio.run(measure(asked, show=show, keep_samples=score is not None))
    report = replace(report, settings={"vivavoce": __version__, "source": load.label, **report.settings})
    if _deliver(report, score, kept.log_dir, load.label, reporter):
        raise typer.Exit(1)


def _deliver(report: Report, score: Score | None, folder: Path | None, label: str, reporter: Reporter) -> bool:
    """Print the figures and write the reports. Returns True if a request or the recogniser failed."""
    unheard = None
    if score is not None:
        try:
            with reporter.working("listening …"):
                report = report.scored(score)
        except VivavoceError as error:  # report the figures of the load test even so
            unheard = error
    print(report.text())
    if folder is not None:
        files = report.write(folder, label)
        reporter.report(f"{folder}: audio, {', '.join(file.name for file in files)}")
    for problem in report.problems():
        print_error(f"error: {problem}")
    if unheard is not None:
        print_error(f"error: {unheard}")
    return report.failed > 0 or unheard is not None


def _scoring(asked: LoadOptions, recogniser: str) -> Score:
    """Test the recogniser before the load starts, and return the function that scores audio. Errors: as in eval."""
    from vivavoce_bench.evaluate.assessment import Instruments, assess, ready
    from vivavoce_bench.evaluate.cases import Case, cases_of
    from vivavoce_bench.evaluate.speaking import Clip

    texts = list(dict.fromkeys(utterance.text for utterance in asked.utterances))
    jobs = recogniser_jobs(asked.total) if recogniser == BUILT_IN_RECOGNISER else 1
    instruments = ready(cases_of(texts), Instruments(recogniser_factory(recogniser), jobs))

    def score(outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
        clips = (
            Clip(Case(one.utterance.name, one.utterance.text), asked.model, one.samples, one.sample_rate)
            for one in outcomes
        )
        summary = assess(clips, {}, instruments).summary
        return {key: summary[key] for key in _QUALITY if key in summary}

    return score
