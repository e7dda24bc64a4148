"""`vivavoce bench`: how fast speech comes under load; its commands measure the stages without an engine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli import bench_offline, bench_streaming, options
from vivavoce.doors.cli.bench_request import BenchRequest, check
from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.cli.model import EngineChoice, ModelChoice
from vivavoce.errors import InvalidRequest

EXAMPLES = options.examples(
    "vivavoce bench --concurrency 8 --requests 64",
    "vivavoce bench --model CosyVoice2-0.5B --rate 4 -n 200 --json bench.json --plot bench.png",
    "vivavoce bench --tokens 125 --policy official --warmup 4 --json -",
    "vivavoce bench offline --help",
)
app = typer.Typer(epilog=EXAMPLES)
app.command(epilog=bench_offline.EXAMPLES, short_help="Texts in batches, by runtime and batch size.")(
    bench_offline.offline
)
app.command(epilog=bench_streaming.EXAMPLES, short_help="Speech tokens to sound, chunk by chunk.")(
    bench_streaming.streaming
)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", metavar="NUMBER", help="Users who ask again when answered.  [default: 1]"),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="NUMBER", help="Instead: users who come at random, so many per second."),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", "-n", metavar="NUMBER", min=1, help="Requests that are measured.")
    ] = 32,
    warmup: Annotated[
        int | None,
        typer.Option(
            "--warmup", metavar="NUMBER", min=0, help="Requests before that.  [default: one per user, or 4 with --rate]"
        ),
    ] = None,
    text_file: Annotated[
        Path | None,
        typer.Option("--text-file", "-f", metavar="FILE", help="One text per line.  [default: 40 English sentences]"),
    ] = None,
    words: Annotated[
        str | None, typer.Option("--words", metavar="MIN-MAX", help="Take texts of that many words only.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="NUMBER", help="Let speech last exactly so many tokens (25 per second)."),
    ] = None,
    voice: Annotated[
        list[str] | None,
        typer.Option(
            "--voice",
            "-v",
            metavar="NAME|RECORDING",
            help="May be repeated: they speak in turn.  [default: the model's first voice]",
        ),
    ] = None,
    prompt_text: Annotated[
        list[str] | None,
        typer.Option("--prompt-text", metavar="TEXT", help="What a recording says; one for each, in their order."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask for whole utterances instead of streams.")] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="How streams are cut: official, low_latency (default), equal, exponential or time_based.",
        ),
    ] = None,
    first_hop: Annotated[
        int | None, typer.Option("--first-hop", metavar="NUMBER", help="Speech tokens of the first chunk.")
    ] = None,
    lookahead: Annotated[
        int | None,
        typer.Option("--lookahead", metavar="NUMBER", help="Speech tokens that each chunk waits for beyond its own."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="NUMBER", help="Of texts, arrivals and speech.")] = 0,
    admission: Annotated[
        str,
        typer.Option(
            "--admission",
            metavar="NAME",
            help="What becomes of streams beyond capacity: queue, refuse or all (they start anyway).",
        ),
    ] = "queue",
    memory: options.MemoryOption = None,
    kernels: options.KernelsOption = None,
    deterministic: options.DeterministicOption = False,
    int8_lm: options.Int8LmOption = False,
    fp8_flow: options.Fp8FlowOption = False,
    quality: Annotated[
        bool,
        typer.Option("--quality", help="Measure errors and similarity of the same audio; needs vivavoce[eval]."),
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the figures as JSON; - is stdout.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw a PNG file; needs vivavoce[eval].")
    ] = None,
    model: options.ModelOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    variant: options.VariantOption = None,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Put a load on the engine: time to first audio, gaps, underruns, throughput, memory.

    The exit code is 1 if a request failed; refusals are figures. docs/benchmark.md explains them all.
    """
    if context.invoked_subcommand is not None:
        _refuse_lost_options(context)
        return
    reporter = Reporter(quiet)
    request = BenchRequest(
        choice=ModelChoice(model, device, dtype, variant, voices),
        engine=EngineChoice(admission, memory, kernels, deterministic, int8_lm, fp8_flow),
        concurrency=concurrency,
        rate=rate,
        requests=requests,
        warmup=warmup,
        text_file=text_file,
        words=words,
        tokens=tokens,
        voices=voice or [],
        prompt_texts=prompt_text or [],
        offline=offline,
        policy=policy,
        first_hop=first_hop,
        lookahead=lookahead,
        seed=seed,
        quality=quality,
        json_file=json_file,
        plot=plot,
        command=shlex.join(["vivavoce", *sys.argv[1:]]),
    )
    with reporter.working("starting …"):
        checked = check(request)
        from vivavoce.doors.cli.bench_run import measure
    failed = measure(checked, reporter)
    if failed:
        raise typer.Exit(1)


def _refuse_lost_options(context: typer.Context) -> None:
    """Options before the command are the load's, which is not put on: nobody would see that they did nothing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            command = context.invoked_subcommand
            raise InvalidRequest(f"bench: --{name.replace('_', '-')} stands before {command}; write it after {command}")
