"""The work of `vivavoce client`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.clients.triton.options import LoadOptions, Mode
from vivavoce.clients.triton.utterance import Manner, Utterance, check_reference_text
from vivavoce.doors.cli.console import Reporter, print_error
from vivavoce.doors.cli.output import check_writable
from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.version import __version__

if TYPE_CHECKING:
    from vivavoce.clients.triton.http_client import HttpOptions
    from vivavoce.clients.triton.outcome import Outcome
    from vivavoce.clients.triton.report import Report, Score
    from vivavoce.evaluate.recogniser import RecogniserFactory

_MOST_JOBS = 8
_REQUESTS_PER_JOB = 8
"""A recogniser of its own takes longer to start than to hear a few utterances."""
BUILT_IN_RECOGNISER = "pocketsphinx"
_RATES = tuple(f"{unit}_free{bound}" for unit in ("wer", "cer") for bound in ("", "_low", "_high"))
_QUALITY = (*_RATES, "wer_closed", "cer_closed", "per")
"""Keys of an evaluation's summary that stand beside the latencies."""
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Source:
    """Where the texts are from: exactly one of them."""

    target_text: str | None
    reference_audio: Path | None
    reference_text: str
    manifest: Path | None
    dataset: str | None
    split: str | None

    def utterances(self) -> list[Utterance]:
        """Read them.

        Raises:
            InvalidRequest: none or several sources, or one that cannot be read.
            MissingDependency: a data set, without the package for it.
        """
        given = {
            "--target-text": self.target_text,
            "--manifest-path": self.manifest,
            "--huggingface-dataset": self.dataset,
        }
        named = [option for option, value in given.items() if value is not None]
        if len(named) != 1:
            found = f"{' and '.join(named)} are given" if named else "no text is given"
            raise InvalidRequest(f"target_text: {found}; give one of {', '.join(given)}")
        if self.split is not None and self.dataset is None:
            raise InvalidRequest("split_name: belongs to a data set; name it with --huggingface-dataset")
        if self.target_text is not None:
            check_reference_text(self.reference_audio, self.reference_text)
            return [Utterance("single", self.target_text, self.reference_audio, self.reference_text)]
        if self.reference_audio is not None or self.reference_text:
            raise InvalidRequest(f"reference_audio: {named[0]} names its own recordings; leave it and its text out")
        if self.manifest is not None:
            from vivavoce.clients.triton.manifest import read_manifest

            return read_manifest(self.manifest)
        from vivavoce.clients.triton.dataset import read_dataset

        return read_dataset(self.dataset or "", self.split)

    @property
    def label(self) -> str:
        """What the report's files are called."""
        if self.manifest is not None:
            return self.manifest.stem
        if self.dataset is not None:
            return self.split or self.dataset.rpartition("/")[2]
        return "single"


@dataclass(frozen=True)
class LoadRequest:
    """The options of `vivavoce client grpc` as they were typed."""

    server: str
    source: Source
    model: str
    mode: Mode
    manner: Manner
    num_tasks: int
    requests: int | None
    warmup: int
    use_spk2info_cache: str
    chunk_overlap_s: float
    timeout_s: float
    log_dir: Path | None
    log_interval: int
    recogniser: str | None
    """None: errors are not measured."""


def speak_once(options: HttpOptions, output: Path, reporter: Reporter) -> None:
    """Ask over HTTP and write the audio."""
    with reporter.working("speaking …"):
        import time

        from vivavoce.clients.triton.audio import write_wav
        from vivavoce.clients.triton.http_client import speak_http

        check_writable(output, field="output_audio")
        start_s = time.perf_counter()
        audio = speak_http(options)
        spent_s = time.perf_counter() - start_s
        write_wav(output, audio)
    reporter.report(
        f"{output}: {audio.duration_s:.2f} s of audio, RTF {spent_s / audio.duration_s:.2f} "
        f"(asked and answered in {spent_s:.2f} s)"
    )


def put_load(request: LoadRequest, reporter: Reporter) -> bool:
    """Put the load on, print the figures and write the reports; whether anything failed, be it the listening alone."""
    import asyncio

    with reporter.working("starting …"):
        from vivavoce.clients.triton.connection import require_tritonclient
        from vivavoce.clients.triton.load import measure

        require_tritonclient()
        options = _checked(request)
        score = None if request.recogniser is None else _scoring(options, request.recogniser)
    with reporter.working("asking …") as working:
        show = _progress(options.total, request.log_interval, reporter, working)
        report = asyncio.run(measure(options, show=show, keep_samples=score is not None))
    report = replace(report, settings={"vivavoce": __version__, "source": request.source.label, **report.settings})
    unheard = None
    if score is not None:
        try:
            with reporter.working("listening …"):
                report = report.scored(score)
        except VivavoceError as error:  # the load's own figures stand without what a recogniser adds to them
            unheard = error
    _deliver(report, request, reporter)
    if unheard is not None:
        print_error(f"error: {unheard}")
    return report.failed > 0 or unheard is not None


def _deliver(report: Report, request: LoadRequest, reporter: Reporter) -> None:
    print(report.text())
    if request.log_dir is not None:
        files = report.write(request.log_dir, request.source.label)
        reporter.report(f"{request.log_dir}: audio, {', '.join(file.name for file in files)}")
    for problem in report.problems():
        print_error(f"error: {problem}")


def _checked(request: LoadRequest) -> LoadOptions:
    cached = _TRUTHS.get(request.use_spk2info_cache.lower())
    if cached is None:
        raise InvalidRequest(f"use_spk2info_cache: {request.use_spk2info_cache!r} is neither True nor False; give one")
    return LoadOptions(
        server=request.server,
        utterances=request.source.utterances(),
        model=request.model,
        mode=request.mode,
        manner=request.manner,
        num_tasks=request.num_tasks,
        requests=request.requests,
        warmup=request.warmup,
        use_spk2info_cache=cached,
        chunk_overlap_s=request.chunk_overlap_s,
        timeout_s=request.timeout_s,
        folder=request.log_dir,
    )


def _progress(
    total: int, interval: int, reporter: Reporter, working: Callable[[str], None]
) -> Callable[[Outcome], None]:
    done = failed = 0

    def show(outcome: Outcome) -> None:
        nonlocal done, failed
        done += 1
        failed += not outcome.ok
        working(f"asking … {done} of {total}")
        if done % interval == 0 or done == total:
            reporter.report(f"{done} of {total} requests, {failed} failed")

    return show


def _scoring(options: LoadOptions, recogniser: str) -> Score:
    """A recogniser, tried out before the load is put on; errors as in `vivavoce eval`."""
    from vivavoce.evaluate.assessment import assess
    from vivavoce.evaluate.cases import Case, cases_of
    from vivavoce.evaluate.instruments import Instruments
    from vivavoce.evaluate.scoring import ready
    from vivavoce.evaluate.speaking import Clip

    texts = list(dict.fromkeys(utterance.text for utterance in options.utterances))
    jobs = 1
    if recogniser == BUILT_IN_RECOGNISER:
        jobs = min(os.cpu_count() or 1, _MOST_JOBS, max(1, options.total // _REQUESTS_PER_JOB))
    instruments = ready(cases_of(texts), Instruments(_recogniser(recogniser), jobs))

    def score(outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
        clips = (
            Clip(Case(outcome.name, outcome.text), options.model, outcome.samples, outcome.sample_rate)
            for outcome in outcomes
            if outcome.samples is not None
        )
        summary = assess(clips, {}, instruments).summary
        return {key: summary[key] for key in _QUALITY if key in summary}

    return score


def _recogniser(name: str) -> RecogniserFactory:
    from vivavoce.evaluate.recogniser import NamedRecogniser
    from vivavoce.evaluate.sphinx import PocketSphinx

    if name == BUILT_IN_RECOGNISER:
        return PocketSphinx
    if os.getcwd() not in sys.path:  # where people keep a module of their own
        sys.path.append(os.getcwd())
    return NamedRecogniser(name)
