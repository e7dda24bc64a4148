"""`vivavoce doctor`: whether this machine can do what the program needs."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter, one_line, print_table, size_text
from vivavoce.doors.cli.info import problem_line
from vivavoce.doors.cli.output import check_writable
from vivavoce.errors import VivavoceError
from vivavoce.version import __version__

EXAMPLES = options.examples("vivavoce doctor", "vivavoce doctor CosyVoice2-0.5B --json")
MIN_FREE_BYTES = 5_000_000_000
"""A published model takes 2 to 5 GB."""


class State(str, Enum):
    """How a finding weighs."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing fails for it, or only what the text says."""
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    state: State
    text: str


@dataclass(frozen=True)
class Package:
    """A package that the program uses."""

    module: str
    distribution: str
    without: str
    """What does not work where it is absent."""
    needed: bool = True
    """Whether no speech is made without it."""


PACKAGES = (
    Package("torch", "torch", "nothing works"),
    Package("numpy", "numpy", "nothing works"),
    Package("safetensors", "safetensors", "no weights and no stored voices can be read"),
    Package("tokenizers", "tokenizers", "no text can be read"),
    Package("regex", "regex", "no text can be read"),
    Package("wetext", "wetext", "numbers, dates and units cannot be read"),
    Package("yaml", "pyyaml", "no model can be read"),
    Package("onnxruntime", "onnxruntime", "no model can be loaded"),
    Package("soundfile", "soundfile", "no recording can be read"),
    Package("soxr", "soxr", "no recording can be read"),
    Package("typer", "typer", "no command runs"),
    Package("rich", "rich", "no table and no progress can be shown"),
    Package("platformdirs", "platformdirs", "models and voices have no place"),
    Package("inflect", "inflect", "English texts with bare numbers fail", needed=False),
    Package("kaldi_native_fbank", "kaldi-native-fbank", "no voice can be taken from a recording", needed=False),
    Package("av", "av", "recordings in m4a, aac, webm and wma cannot be read", needed=False),
    Package("httpx", "httpx", "no model can be downloaded", needed=False),
    Package("pocketsphinx", "pocketsphinx", "`vivavoce eval` needs a recogniser of your own", needed=False),
    Package("matplotlib", "matplotlib", "`vivavoce eval` draws no pictures", needed=False),
)


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", envvar=options.MODEL_VARIABLE, help="A downloaded model or a folder to check as well."
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check this machine, the installation and a model.

    The exit code is 1 if something is broken that speaking needs.
    """
    with Reporter().working("looking …"):
        findings = list(examine(model))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2))
    else:
        print_table([(finding.subject, finding.state.value, finding.text) for finding in findings])
    if any(finding.state is State.BROKEN for finding in findings):
        raise typer.Exit(1)


def examine(model: str | None) -> Iterator[Finding]:
    """Look at everything, from the program outwards."""
    yield Finding("python", State.OK, f"{platform.python_version()} on {platform.platform()}")
    yield Finding("vivavoce", State.OK, __version__)
    packages = [_package(package) for package in PACKAGES]
    yield from packages
    if any(finding.state is State.BROKEN for finding in packages):
        yield Finding("model", State.NOTE, "not looked at; mend the packages first")
        return
    yield from _places()
    yield from _devices()
    yield _model(model)


def _package(package: Package) -> Finding:
    try:
        import_module(package.module)
    except Exception as error:  # a broken installation raises anything; whatever it is, it is reported
        state = State.BROKEN if package.needed else State.NOTE
        remedy = f"`pip install {package.distribution}` mends it"
        return Finding(
            package.distribution, state, f"cannot be imported ({one_line(str(error))}): {package.without}; {remedy}"
        )
    try:
        return Finding(package.distribution, State.OK, version(package.distribution))
    except PackageNotFoundError:
        return Finding(package.distribution, State.OK, "present, of unknown version")


def _places() -> Iterator[Finding]:
    from vivavoce.checkpoint.hub.locate import models_home
    from vivavoce.service.voices.store import voices_home

    yield _place("models", models_home(), "*/cosyvoice*.yaml")
    yield _place("voices", voices_home(), "*.safetensors")
    yield _disk(models_home())


def _place(subject: str, folder: Path, pattern: str) -> Finding:
    """Look at a folder for downloads or stored voices; speech needs neither."""
    try:
        check_writable(_nearest(folder) / "probe", field=subject)
    except (VivavoceError, OSError) as error:
        # The system's error names the file of the trial, which tells nobody anything.
        reason = one_line(error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
        return Finding(
            subject, State.NOTE, f"{folder} cannot be written ({reason}); set VIVAVOCE_HOME to a place that can"
        )
    return Finding(subject, State.OK, f"{folder} ({len(list(folder.glob(pattern)))} there)")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(_nearest(folder)).free
    if free < MIN_FREE_BYTES:
        return Finding("disk", State.NOTE, f"{size_text(free)} free for models: a published one may not fit")
    return Finding("disk", State.OK, f"{size_text(free)} free for models")


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _devices() -> Iterator[Finding]:
    import torch

    yield Finding("cpu", State.OK, f"{torch.get_num_threads()} threads of {os.cpu_count()} processors")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Finding(f"cuda:{index}", State.OK, f"{properties.name}, {size_text(properties.total_memory)}")
    if not torch.cuda.is_available():
        why = "torch is built without it" if torch.version.cuda is None else "no device that torch can use"
        yield Finding("cuda", State.NOTE, f"none ({why}); the CPU is used")
    if torch.backends.mps.is_available():
        yield Finding("mps", State.NOTE, "Apple GPU; speaking on it is untested")


def _model(model: str | None) -> Finding:
    from vivavoce.service.default_model import model_folder
    from vivavoce.service.inspection import inspect_model

    try:
        folder = model_folder(model)
        report = inspect_model(folder)
    except VivavoceError as error:
        return Finding("model", State.BROKEN, str(error))
    if report.problems:
        return Finding("model", State.BROKEN, problem_line(report))
    described = f" ({report.card.description})" if report.card.description else ""
    return Finding("model", State.OK, f"{report.card.name}{described} is whole: {folder}")
