"""The command `vivavoce doctor`, which checks that this machine has everything that the program needs."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import typer

from vivavoce.cli.console import Reporter, one_line, print_json, print_table, size_text
from vivavoce.cli.flags import MODEL_VARIABLE, JsonOption, argument
from vivavoce.cli.output import check_writable
from vivavoce.errors import VivavoceError
from vivavoce.version import __version__

EXAMPLES = ("vivavoce doctor", "vivavoce doctor CosyVoice2-0.5B --json")
MIN_FREE_BYTES = 7_000_000_000
"""Free disk space below which a note is shown; a published model takes 2 to 7 GB."""


State = Literal["ok", "note", "broken"]
"""State of a finding. note: speech works, but the function that the text names may not. broken: speech cannot work."""
NEEDED = {
    "torch": "nothing works",
    "numpy": "nothing works",
    "safetensors": "no weights and no stored voices can be read",
    "tokenizers": "no text can be read",
    "regex": "no text can be read",
    "pyyaml": "no model can be read",
    "onnxruntime": "no model can be loaded",
    "soundfile": "no recording can be read",
    "soxr": "no recording can be read",
    "typer": "no command runs",
    "rich": "no table and no progress can be shown",
    "platformdirs": "the folders of models and voices cannot be found",
}
OPTIONAL = {
    "wetext": "texts cannot be read as CosyVoice reads them (reading=official, its services, `vivavoce.compat`)",
    "inflect": "as without wetext",
    "av": "recordings in m4a, aac, webm and wma cannot be read",
    "httpx": "no model can be downloaded",
    "pocketsphinx": "`vivavoce eval` needs a recogniser of your own",
    "matplotlib": "`vivavoce eval` draws no pictures",
}


@dataclass(frozen=True)
class Finding:
    subject: str
    state: State
    text: str


def doctor(
    model: str | None = argument("A downloaded model or a folder to check as well.", "MODEL", envvar=MODEL_VARIABLE),
    as_json: JsonOption = False,
) -> None:
    """Check this machine, the installation and a model.

    The exit code is 1 if anything that speech needs is broken.
    """
    with Reporter().working("looking …"):
        findings = list(examine(model))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([(finding.subject, finding.state, finding.text) for finding in findings])
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


def examine(model: str | None) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("vivavoce", "ok", __version__)
    packages = [_package(name, without, "broken") for name, without in NEEDED.items()]
    packages += [_package(name, without, "note") for name, without in OPTIONAL.items()]
    yield from packages
    if any(finding.state == "broken" for finding in packages):
        yield Finding("model", "note", "not checked; install the missing packages first")
        return
    yield from _places()
    yield from _devices()
    yield _model(model)


def _package(name: str, without: str, absent: State) -> Finding:
    try:
        import_module("yaml" if name == "pyyaml" else name.replace("-", "_"))
    except Exception as error:  # a broken installation can raise anything
        remedy = f"try `pip install {name}`"
        return Finding(name, absent, f"cannot be imported ({one_line(str(error))}): {without}; {remedy}")
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "ok", "present, of unknown version")


def _places() -> Iterator[Finding]:
    from vivavoce.checkpoint.known_models import models_home
    from vivavoce.frontend.voices.stores import voices_home

    yield _place("models", models_home(), "*/cosyvoice*.yaml")
    yield _place("voices", voices_home(), "*.safetensors")
    yield _disk(models_home())


def _place(subject: str, folder: Path, pattern: str) -> Finding:
    try:
        check_writable(_nearest(folder) / "probe", field=subject)
    except (VivavoceError, OSError) as error:
        # The system's error would name the probe file, which does not help.
        reason = one_line(error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
        return Finding(subject, "note", f"{folder} cannot be written ({reason}); set VIVAVOCE_HOME to a place that can")
    return Finding(subject, "ok", f"{folder} ({len(list(folder.glob(pattern)))} there)")


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(_nearest(folder)).free
    few = free < MIN_FREE_BYTES
    text = f"{size_text(free)} free for models{': a published one may not fit' if few else ''}"
    return Finding("disk", "note" if few else "ok", text)


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _devices() -> Iterator[Finding]:
    import torch

    yield Finding("cpu", "ok", f"{torch.get_num_threads()} threads of {os.cpu_count()} processors")
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    waits = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ) or "GOMP_SPINCOUNT not set"
    yield Finding("openmp", "ok", f"{waits}; a program that imports torch before vivavoce has to set it itself")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Finding(f"cuda:{index}", "ok", f"{properties.name}, {size_text(properties.total_memory)}")
    if not torch.cuda.is_available():
        why = "torch is built without it" if torch.version.cuda is None else "no device that torch can use"
        yield Finding("cuda", "note", f"none ({why}); the CPU is used")
    if torch.backends.mps.is_available():
        yield Finding("mps", "note", "Apple GPU; speaking on it is untested")


def _model(model: str | None) -> Finding:
    from vivavoce.frontend.model_choice import model_folder
    from vivavoce_inspect.model import inspect_model

    try:
        report = inspect_model(model_folder(model))
    except VivavoceError as error:
        return Finding("model", "broken", str(error))
    if report.problems:
        return Finding("model", "broken", report.problem_line)
    described = f" ({report.card.description})" if report.card.description else ""
    return Finding("model", "ok", f"{report.card.name}{described} is whole: {report.folder}")
