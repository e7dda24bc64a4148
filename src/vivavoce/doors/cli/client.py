"""`vivavoce client`: ask a Triton server for speech, one utterance over HTTP or a load of them over gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vivavoce.clients.triton.options import Mode
from vivavoce.doors.cli import options
from vivavoce.doors.cli.client_run import (
    BUILT_IN_RECOGNISER,
    LoadRequest,
    Source,
    put_load,
    speak_once,
)
from vivavoce.doors.cli.console import Reporter
from vivavoce.errors import InvalidRequest

DEFAULT_MODEL = "cosyvoice2"

app = typer.Typer(
    help="Ask a Triton server for speech: http for one utterance, grpc for a load and its figures.",
    epilog=options.examples(
        'vivavoce client http --reference-audio me.wav --reference-text "What I say." --target-text "Hello."',
        "vivavoce client grpc --manifest-path meta.lst --num-tasks 4 --log-dir log",
    ),
)

ReferenceAudioOption = Annotated[
    Path | None,
    typer.Option(
        "--reference-audio",
        metavar="FILE",
        help="A recording of the voice: wav, flac, ogg or mp3.  [default: the server's own voice]",
    ),
]
ReferenceTextOption = Annotated[str, typer.Option("--reference-text", metavar="TEXT", help="What the recording says.")]
ModelNameOption = Annotated[
    str, typer.Option("--model-name", metavar="NAME", help="cosyvoice2, vivavoce or another of that form.")
]
VoiceOption = Annotated[
    str | None, typer.Option("--voice", "-v", metavar="NAME", help="A voice that the server keeps by name.")
]
InstructOption = Annotated[str | None, typer.Option("--instruct-text", metavar="TEXT", help="How to say it.")]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", metavar="NUMBER", help="The same seed gives the same audio.  [default: the server's]"),
]
SpeedOption = Annotated[float | None, typer.Option("--speed", metavar="NUMBER", help="0.5 to 2.0; the pitch stays.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="The longest wait for an answer.")]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    "http",
    epilog=options.examples(
        'vivavoce client http --reference-audio me.wav --reference-text "What I say." --target-text "Hello." --seed 1',
        'vivavoce client http --server-url gpu:8000 --model-name vivavoce --voice anna --target-text "Hello."',
    ),
)
def http_(
    target_text: Annotated[str, typer.Option("--target-text", metavar="TEXT", help="What to say.")],
    server_url: Annotated[
        str, typer.Option("--server-url", metavar="URL", help="Triton's HTTP address, with or without http://.")
    ] = "localhost:8000",
    reference_audio: ReferenceAudioOption = None,
    reference_text: ReferenceTextOption = "",
    model_name: ModelNameOption = DEFAULT_MODEL,
    output_audio: Annotated[
        Path, typer.Option("--output-audio", "-o", metavar="FILE", help="WAV file to write, overwritten if it exists.")
    ] = Path("output.wav"),
    voice: VoiceOption = None,
    instruct_text: InstructOption = None,
    seed: SeedOption = None,
    speed: SpeedOption = None,
    binary: Annotated[
        bool, typer.Option("--binary", help="Send and receive numbers in binary: smaller than JSON by far.")
    ] = False,
    timeout: TimeoutOption = 120.0,
    quiet: options.QuietOption = False,
) -> None:
    """Ask for one utterance over HTTP.

    A model that answers in one piece is asked at /v2/models/NAME/infer, one that streams at generate_stream.
    """
    from vivavoce.clients.triton.http_client import HttpOptions
    from vivavoce.clients.triton.utterance import Manner, Utterance, check_reference_text

    check_reference_text(reference_audio, reference_text)
    speak_once(
        HttpOptions(
            Utterance(output_audio.stem, target_text, reference_audio, reference_text),
            server_url,
            model_name,
            Manner(voice, instruct_text, seed, speed),
            binary,
            timeout,
        ),
        output_audio,
        Reporter(quiet),
    )


@app.command(
    "grpc",
    epilog=options.examples(
        'vivavoce client grpc --reference-audio me.wav --reference-text "What I say." --target-text "Hello."',
        "vivavoce client grpc --manifest-path meta.lst --num-tasks 4 --log-dir log --compute-wer",
        'vivavoce client grpc --use-spk2info-cache True --target-text "Hello." --num-tasks 16 --requests 200',
    ),
)
def grpc_(
    server_addr: Annotated[str, typer.Option("--server-addr", metavar="HOST", help="Where Triton runs.")] = "localhost",
    server_port: Annotated[
        int, typer.Option("--server-port", metavar="NUMBER", min=1, max=65535, help="Of its gRPC interface.")
    ] = 8001,
    reference_audio: ReferenceAudioOption = None,
    reference_text: ReferenceTextOption = "",
    target_text: Annotated[
        str | None, typer.Option("--target-text", metavar="TEXT", help="What to say, again and again.")
    ] = None,
    huggingface_dataset: Annotated[
        str | None,
        typer.Option(
            "--huggingface-dataset", metavar="NAME", help="Instead: say a data set; needs pip install datasets."
        ),
    ] = None,
    split_name: Annotated[
        str | None,
        typer.Option("--split-name", metavar="NAME", help="Which part of it.  [default: the only one there is]"),
    ] = None,
    manifest_path: Annotated[
        Path | None,
        typer.Option(
            "--manifest-path",
            metavar="FILE",
            help="Instead: lines of name|reference text|reference recording|text, or JSON.",
        ),
    ] = None,
    model_name: ModelNameOption = DEFAULT_MODEL,
    num_tasks: Annotated[
        int, typer.Option("--num-tasks", metavar="NUMBER", help="Users at a time, who ask again when answered.")
    ] = 1,
    requests: Annotated[
        int | None,
        typer.Option("--requests", "-n", metavar="NUMBER", help="In all.  [default: each text once, one per task]"),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option("--warmup", metavar="NUMBER", help="Requests before those that count.  [default: one per task]"),
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", help="offline is for repositories whose models answer in one piece.")
    ] = Mode.STREAMING,
    chunk_overlap_duration: Annotated[
        float,
        typer.Option(
            "--chunk-overlap-duration",
            metavar="SECONDS",
            help="What the server repeats at the start of each chunk; it is cross-faded.",
        ),
    ] = 0.0,
    use_spk2info_cache: Annotated[
        str,
        typer.Option(
            "--use-spk2info-cache", metavar="True|False", help="Send no recordings: the server has the voice."
        ),
    ] = "False",
    voice: VoiceOption = None,
    instruct_text: InstructOption = None,
    seed: SeedOption = None,
    speed: SpeedOption = None,
    timeout: TimeoutOption = 120.0,
    log_interval: Annotated[
        int, typer.Option("--log-interval", metavar="NUMBER", min=1, help="Say how far it is every so many requests.")
    ] = 5,
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", metavar="FOLDER", help="Keep the audio and the reports here."),
    ] = None,
    compute_wer: Annotated[
        bool, typer.Option("--compute-wer", help="Measure the word error rate too; needs vivavoce[eval].")
    ] = False,
    recogniser: Annotated[
        str | None,
        typer.Option(
            "--recogniser",
            metavar="MODULE:CALLABLE",
            help="For that: code of your own.  [default: pocketsphinx (English)]",
        ),
    ] = None,
    quiet: options.QuietOption = False,
) -> None:
    """Put a load on a Triton server over gRPC: first and second chunk, whole answers, gaps, throughput.

    Needs pip install 'vivavoce[triton-client]'. The exit code is 1 if a request or the recogniser failed.
    docs/triton-clients.md explains the figures.
    """
    from vivavoce.clients.triton.utterance import Manner

    if recogniser is not None and not compute_wer:
        raise InvalidRequest("recogniser: listens for --compute-wer only; add that, or leave --recogniser out")
    reporter = Reporter(quiet)
    request = LoadRequest(
        server=f"{server_addr}:{server_port}",
        source=Source(target_text, reference_audio, reference_text, manifest_path, huggingface_dataset, split_name),
        model=model_name,
        mode=mode,
        manner=Manner(voice, instruct_text, seed, speed),
        num_tasks=num_tasks,
        requests=requests,
        warmup=num_tasks if warmup is None else warmup,
        use_spk2info_cache=use_spk2info_cache,
        chunk_overlap_s=chunk_overlap_duration,
        timeout_s=timeout,
        log_dir=log_dir,
        log_interval=log_interval,
        recogniser=(recogniser or BUILT_IN_RECOGNISER) if compute_wer else None,
    )
    if put_load(request, reporter):
        raise typer.Exit(1)
