"""The options that several commands share, each declared once."""

from __future__ import annotations

from typing import Annotated

import typer

MODEL_VARIABLE = "VIVAVOCE_MODEL"
"""Names the model of every command that is given none."""


OutOption = Annotated[
    str,
    typer.Option(
        "--out",
        "-o",
        metavar="PATH|-",
        help="File to write, overwritten if it exists: .mp3, .opus, .aac, .flac, .pcm, else WAV; - is stdout, as WAV.",
    ),
]
VoiceOption = Annotated[
    str | None,
    typer.Option(
        "--voice",
        "-v",
        metavar="NAME|RECORDING",
        help="A stored or built-in voice, or a recording of 0.5 to 30 s.  [default: the model's first voice]",
    ),
]
PromptTextOption = Annotated[
    str,
    typer.Option("--prompt-text", metavar="TEXT", help="What the recording says; helps to clone the manner as well."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME|FOLDER",
        envvar=MODEL_VARIABLE,
        help="A downloaded model or a model folder.  [default: mini, a small demo in English]",
    ),
]
VoicesOption = Annotated[
    str | None,
    typer.Option(
        "--voices",
        metavar="FOLDER|URL",
        envvar="VIVAVOCE_VOICES",
        help="Where voices are stored: a folder, or redis://HOST.  [default: the user's own folder]",
    ),
]
SpeedOption = Annotated[float, typer.Option("--speed", metavar="NUMBER", help="0.5 to 2.0; the pitch stays.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="NUMBER", help="The same seed gives the same audio.")]
DeviceOption = Annotated[
    str,
    typer.Option("--device", metavar="NAME", help="auto (CUDA if there is one), cpu, cuda, cuda:N or mps (untested)."),
]
DtypeOption = Annotated[
    str,
    typer.Option("--dtype", metavar="NAME", help="auto (float16 on a GPU), float32, bfloat16 or float16."),
]
VariantOption = Annotated[
    str | None,
    typer.Option("--variant", metavar="NAME", help="Take llm.NAME.pt and the like where the model has them."),
]
MemoryOption = Annotated[
    float | None,
    typer.Option("--memory", metavar="GB", help="Most GPU memory that is taken, the weights included.  [default: all]"),
]
KernelsOption = Annotated[
    bool | None,
    typer.Option(
        "--kernels/--no-kernels", help="Our own GPU kernels and recorded launches.  [default: where they are faster]"
    ),
]
DeterministicOption = Annotated[
    bool,
    typer.Option("--deterministic", help="The same bits whoever else is served: slower, for audits and tests."),
]
Int8LmOption = Annotated[
    bool,
    typer.Option(
        "--int8-lm",
        help="Read the language model's matrices as int8: less exact, and slower on an H200; CUDA in 16 bit only.",
    ),
]
Fp8FlowOption = Annotated[
    bool,
    typer.Option(
        "--fp8-flow",
        help="Multiply in fp8 within the flow: less exact, and slower on an H200; CUDA in 16 bit only, 8.9 and later.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def examples(*lines: str) -> str:
    """The end of a command's help: lines to type."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
