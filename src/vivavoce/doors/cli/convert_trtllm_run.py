"""What `vivavoce convert trtllm` does, and says about it."""

from __future__ import annotations

import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vivavoce.checkpoint.folder import BACKBONE, SPEAKERS
from vivavoce.doors.cli.console import Reporter, is_terminal, print_table, size_text
from vivavoce.errors import InvalidRequest
from vivavoce.export.fresh_folder import check_target
from vivavoce.export.trtllm.calibration import Calibration, read_calibration
from vivavoce.export.trtllm.check import LogitsCheck, compare_logits
from vivavoce.export.trtllm.config_json import build_command
from vivavoce.export.trtllm.convert import Conversion, Progress, convert
from vivavoce.export.trtllm.options import ConvertOptions
from vivavoce.export.trtllm.prompts import Prompt, random_prompts, voices_prompts
from vivavoce.export.trtllm.reread import Reread
from vivavoce.export.trtllm.source import Source, is_hugging_face, open_hugging_face, open_official
from vivavoce.export.trtllm.speech_state import WRITTEN_BACK, write_back
from vivavoce.service.default_model import model_folder
from vivavoce.service.text.tokenizer import TextTokenizer

Step = Callable[[Progress], None]


@dataclass(frozen=True)
class Wishes:
    """The command line as it was typed."""

    model: str | None
    variant: str | None
    out: Path
    options: ConvertOptions
    calibration: Path | None = None
    workers: int = 1
    check: bool = False
    write_back: Path | None = None
    force: bool = False


def run(wishes: Wishes, reporter: Reporter) -> None:
    """Convert, compare if that is wanted, and print what was made and what comes next."""
    _check_wishes(wishes, reporter)
    with reporter.working("opening the model …"):
        source, folder = open_source(wishes.model, wishes.variant)
        wishes.options.check_fits(source.sizes)
        calibration = _calibration(wishes, source, folder)
        prompts = (calibration.prompts or _voices(source, folder)) if wishes.check else ()
        _check_write_back(wishes, folder)
    started = time.perf_counter()
    with _progress(reporter) as step:
        made = convert(
            source,
            wishes.out,
            wishes.options,
            calibration=calibration,
            workers=wishes.workers,
            force=wishes.force,
            progress=step,
        )
        seconds, peak = time.perf_counter() - started, _peak_bytes()
        checked = _check(source, made, prompts, reporter, step) if wishes.check else None
    if wishes.write_back is not None and source.vocabulary is not None:
        with reporter.working("writing the model back …"):
            write_back(Reread(made.folder), folder, wishes.write_back, source.vocabulary, force=wishes.force)
        reporter.report(f"{wishes.write_back} speaks with the checkpoint's weights; its activations are not rounded")
    if reporter.quiet:
        return
    print_table(_rows(wishes.options, made, seconds, peak, checked))
    print(f"\nnext: {shlex.join(build_command(str(wishes.out), _engine(wishes.out), made.dtype))}")
    if source.bias is None:
        reporter.note("the model has no bias of its head: nothing forbids text ids, so an engine may choose them")
    else:
        reporter.note("the speech head's bias is in embedding_bias.npy: requests hand it over as embedding_bias")


def open_source(model: str | None, variant: str | None) -> tuple[Source, Path]:
    """A merged Qwen2 folder, or any model that the other commands take; and its folder."""
    given = None if model is None else Path(model)
    if given is not None and is_hugging_face(given):
        if variant:
            raise InvalidRequest(f"variant: {given} is a merged model, which has none; leave it out")
        return open_hugging_face(given), given
    folder = model_folder(model)
    return open_official(folder, len(TextTokenizer.from_folder(folder / BACKBONE)), variant), folder


def _check_wishes(wishes: Wishes, reporter: Reporter) -> None:
    if wishes.calibration is not None and not (wishes.options.needs_calibration or wishes.check):
        raise InvalidRequest(
            "calibration: nothing uses it; add --smoothquant, --int8-kv-cache or --check, or leave it out"
        )
    if wishes.check and reporter.quiet:
        raise InvalidRequest("check: --quiet hides what it finds; leave one of the two out")


def _check_write_back(wishes: Wishes, folder: Path) -> None:
    if wishes.write_back is None:
        return
    back, out = wishes.write_back.resolve(), wishes.out.resolve()
    if back == out or back in out.parents or out in back.parents:
        raise InvalidRequest(
            f"write-back: {wishes.write_back} and --out {wishes.out} lie within each other; choose another place"
        )
    if is_hugging_face(folder):
        raise InvalidRequest(
            f"write-back: {folder} holds a language model alone, which cannot speak; convert the model's own folder"
        )
    check_target(wishes.write_back, folder, force=wishes.force, mark=WRITTEN_BACK, field="write-back")


def _calibration(wishes: Wishes, source: Source, folder: Path) -> Calibration:
    if wishes.calibration is not None:
        return read_calibration(wishes.calibration, source)
    return Calibration(_voices(source, folder)) if wishes.options.needs_calibration else Calibration()


def _voices(source: Source, folder: Path) -> tuple[Prompt, ...]:
    """The prompts of the model's own voices."""
    voices = folder / SPEAKERS
    if source.vocabulary is None or not voices.is_file():
        return ()
    return voices_prompts(voices, source.vocabulary)


def _check(
    source: Source, made: Conversion, prompts: tuple[Prompt, ...], reporter: Reporter, step: Step
) -> LogitsCheck:
    if not prompts:
        reporter.note("the model brings no voice with a recording's text and tokens: logits are compared on random ids")
        prompts = random_prompts(source)
    done, total = 0, 2 * source.sizes.num_layers

    def layer_done() -> None:
        nonlocal done
        done += 1
        step(Progress("comparing", done, total))

    return compare_logits(source, Reread(made.folder), prompts, layer_done)


def _rows(
    options: ConvertOptions, made: Conversion, seconds: float, peak: int, checked: LogitsCheck | None
) -> list[tuple[str, str]]:
    rows = [
        ("checkpoint", str(made.folder)),
        ("options", _spoken(options, made)),
        ("ranks", str(options.world)),
        ("size", size_text(made.num_bytes)),
        ("time", "was there already" if made.was_there else f"{seconds:.1f} s"),
        ("peak memory", size_text(peak)),
    ]
    if checked is not None:
        rows += [
            ("logits' relative error", f"{checked.relative_error:.2e}"),
            ("logits' largest error", f"{checked.largest_error:.2e}"),
            ("same best id", f"{checked.top1_agreement:.1%} of {checked.num_positions} positions"),
        ]
    return rows


def _engine(out: Path) -> str:
    """Where the next step may put the engine: beside the checkpoint."""
    place = out if out.name not in ("", "..") else out.resolve()  # "." has no name to add to
    return str(place.with_name(f"{place.name}-engine"))


def _spoken(options: ConvertOptions, made: Conversion) -> str:
    words = [str(made.dtype).removeprefix("torch.")]
    words += [f"{name} {size}" for name, size in (("tp", options.tp), ("pp", options.pp)) if size > 1]
    if options.weight_only is not None:
        when = f"laid out for {options.prequantize}" if options.prequantize else "quantised by trtllm-build"
        words.append(f"{options.weight_only} weights {when}")
    if options.smoothquant is not None:
        inputs = "per token" if options.per_token else "static"
        weights = "per channel" if options.per_channel else "per tensor"
        words.append(f"smoothquant {options.smoothquant:g} ({inputs}, {weights})")
    words += ["int8 cache"] if options.int8_kv_cache else []
    words += ["parallel embedding"] if options.parallel_embedding else []
    return ", ".join(words)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def _progress(reporter: Reporter) -> Iterator[Step]:
    """What is told each step: a bar on a terminal, else a line when a part of the work begins."""
    if reporter.quiet or not is_terminal(sys.stderr):
        yield _lines(reporter)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(now: Progress) -> None:
            if now.what not in tasks:
                tasks[now.what] = bar.add_task(now.what, total=now.total)
            bar.update(tasks[now.what], completed=now.done)

        yield show


def _lines(reporter: Reporter) -> Step:
    begun: set[str] = set()

    def show(now: Progress) -> None:
        if now.what not in begun:
            begun.add(now.what)
            reporter.report(f"{now.what}: {now.total} layers and blocks")

    return show
