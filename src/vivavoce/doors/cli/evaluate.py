"""`vivavoce eval`: how intelligible, similar and clean a model's speech is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter, print_table
from vivavoce.doors.cli.evaluate_run import EvaluationRequest, score_recordings, speak_and_score
from vivavoce.doors.cli.model import ModelChoice
from vivavoce.doors.cli.speak import check_manner
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.evaluate.cases import Case
    from vivavoce.evaluate.recogniser import RecogniserFactory
    from vivavoce.evaluate.recordings_folder import RecordingsFolder
    from vivavoce.evaluate.report import Report
    from vivavoce.evaluate.speaking import Manner

EXAMPLES = options.examples(
    "vivavoce eval --out report",
    "vivavoce eval --model CosyVoice2-0.5B --voice anna --voice ben --stream",
    "vivavoce eval --model CosyVoice2-0.5B --list seedtts_testset/en/meta.lst --limit 200",
    "vivavoce eval --audio report/utterances.tsv --control shuffled",
)
_BUILT_IN, _NONE = "pocketsphinx", "none"
_MOST_JOBS = 8


def evaluate(
    sentences: Annotated[
        Path | None,
        typer.Option("--sentences", metavar="FILE", help="One sentence per line.  [default: 20 English sentences]"),
    ] = None,
    list_: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE", help="Lines as in seed-tts-eval: id|prompt text|prompt wav|text."),
    ] = None,
    audio: Annotated[
        Path | None,
        typer.Option(
            "--audio",
            metavar="FOLDER|TABLE",
            help="Score recordings instead: one per sentence, or lines of recording, tab, text (, tab, voice).",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="NUMBER", min=1, help="Take the first sentences only.")
    ] = None,
    voice: Annotated[
        list[str] | None,
        typer.Option(
            "--voice",
            "-v",
            metavar="NAME|RECORDING",
            help="May be repeated.  [default: the model's voices, else those stored for it]",
        ),
    ] = None,
    prompt_text: Annotated[
        list[str] | None,
        typer.Option("--prompt-text", metavar="TEXT", help="What a recording says; one for each, in their order."),
    ] = None,
    model: options.ModelOption = None,
    mode: Annotated[
        str | None, typer.Option(metavar="NAME", help="zero_shot, cross_lingual, instruct or sft.  [default: fullest]")
    ] = None,
    instruct: Annotated[str | None, typer.Option(metavar="TEXT", help="How to say it.")] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="NUMBER", help="Of the first sentence; the others follow.")
    ] = 0,
    top_p: Annotated[float | None, typer.Option("--top-p", metavar="NUMBER", help="0 to 1.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="NUMBER", help="1 or more.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Score streams, and compare their joins with whole speech.")
    ] = False,
    control: Annotated[
        str | None,
        typer.Option("--control", metavar="NAME", help="Spoil it first: shuffled, wrong-text or reversed."),
    ] = None,
    recogniser: Annotated[
        str,
        typer.Option(
            "--recogniser",
            metavar="MODULE:CALLABLE",
            help="pocketsphinx, none, or code of your own, which is imported and run.",
        ),
    ] = _BUILT_IN,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", metavar="NUMBER", min=1, help="Recogniser processes.  [default: by cores; 1 for your own]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Keep the audio, report.json and report.png here."),
    ] = None,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    variant: options.VariantOption = None,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Measure speech: word errors, speaker similarity, lengths, silence, pitch, clicks and speed.

    Every voice speaks every sentence, a recogniser writes down what it hears, and each rate comes with its 95 %
    interval. Needs pip install 'vivavoce[eval]'. docs/evaluation.md explains the figures.
    """
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        if audio is not None:
            _refuse_with_audio(mode, instruct, stream, prompt_text, voice or [])
        if list_ is not None and voice:
            raise InvalidRequest("voice: a list names the voice of each line itself; leave --voice out")
        from vivavoce.evaluate.controls import parse_control

        source, cases = _cases(sentences, list_, audio, limit)
        request = EvaluationRequest(
            choice=ModelChoice(model, device, dtype, variant, voices),
            cases=cases,
            source=source,
            one_voice_each=list_ is not None,
            voices=voice or [],
            prompt_texts=prompt_text or [],
            manner=_manner(mode, instruct, seed, top_p, top_k, stream),
            control=parse_control(control) if control else None,
            recogniser=_recogniser(recogniser),
            recogniser_name=recogniser,
            jobs=jobs or _default_jobs(recogniser),
            folder=_recordings_folder(out, cases, voice or []),
        )
    if audio is not None:
        report = score_recordings(request, reporter)
    else:
        report = speak_and_score(request, reporter)
    _deliver(report, out, as_json, reporter)


def _refuse_with_audio(
    mode: str | None, instruct: str | None, stream: bool, prompt_text: list[str] | None, voices: Sequence[str]
) -> None:
    given = {"--mode": mode, "--instruct": instruct, "--stream": stream, "--prompt-text": prompt_text}
    for option, value in given.items():
        if value:
            raise InvalidRequest(f"audio: recordings are scored as they are; leave {option} out")
    if len(voices) > 1:
        raise InvalidRequest("voice: recordings are compared with one voice, or with those that their table names")


def _cases(
    sentences: Path | None, list_: Path | None, audio: Path | None, limit: int | None
) -> tuple[str, Sequence[Case]]:
    """(where they are from, the cases)."""
    from vivavoce.evaluate.cases import cases_of, read_audio_table, read_seed_tts_list, read_sentences, with_audio
    from vivavoce.evaluate.sentences import SENTENCES

    table = audio is not None and not audio.is_dir()
    sources = [path for path in (sentences, list_, audio if table else None) if path is not None]
    if len(sources) > 1:
        raise InvalidRequest("sentences: are given twice, by --sentences, --list or a table of --audio; leave one out")
    if audio is not None and table:
        return str(audio), read_audio_table(audio)[:limit]
    if list_ is not None:
        cases = read_seed_tts_list(list_)
    else:
        cases = read_sentences(sentences) if sentences is not None else cases_of(SENTENCES)
    cases = cases[:limit]
    if audio is not None:
        sources, cases = [audio], with_audio(cases, audio)
    return str(sources[0]) if sources else "built in", cases


def _manner(
    mode: str | None, instruct: str | None, seed: int, top_p: float | None, top_k: int | None, stream: bool
) -> Manner:
    from vivavoce.evaluate.speaking import Manner

    checked = check_manner("", mode, instruct, 1.0, seed, top_p, top_k)
    return Manner(checked["mode"], instruct, seed, checked["sampling"], stream)


def _recogniser(name: str) -> RecogniserFactory | None:
    from vivavoce.evaluate.recogniser import NamedRecogniser
    from vivavoce.evaluate.sphinx import PocketSphinx

    if name == _NONE:
        return None
    if name == _BUILT_IN:
        return PocketSphinx
    if os.getcwd() not in sys.path:  # where people keep a module of their own
        sys.path.append(os.getcwd())
    return NamedRecogniser(name)


def _default_jobs(recogniser: str) -> int:
    return min(os.cpu_count() or 1, _MOST_JOBS) if recogniser == _BUILT_IN else 1


def _recordings_folder(out: Path | None, cases: Sequence[Case], voices: Sequence[str]) -> RecordingsFolder | None:
    if out is None:
        return None
    from vivavoce.evaluate.picture import check_drawing
    from vivavoce.evaluate.recordings_folder import RecordingsFolder

    check_drawing()
    sources = (path for case in cases for path in (case.audio, case.truth, _recording(case.voice)) if path is not None)
    if any(path.resolve().parent == out.resolve() for path in sources):
        raise InvalidRequest(
            "out: holds the recordings that are evaluated, which would be replaced; choose another folder"
        )
    own = any(case.voice is not None or case.audio is not None for case in cases)
    return RecordingsFolder(out, by_voice=not own and len(voices) != 1)


def _recording(voice: str | None) -> Path | None:
    return Path(voice) if voice is not None and Path(voice).is_file() else None


def _deliver(report: Report, out: Path | None, as_json: bool, reporter: Reporter) -> None:
    if out is not None:
        from vivavoce.evaluate.picture import draw

        report.save(out / "report.json")
        draw(report, out / "report.png")
    if as_json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    else:
        from vivavoce.evaluate.table import report_rows

        header, rows = report_rows(report)
        print_table(rows, header)
    if out is not None:
        reporter.report(f"{out}: {len(report.utterances)} recordings, utterances.tsv, report.json, report.png")
