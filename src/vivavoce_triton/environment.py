"""Where a tritonserver is, and the Python environment of the one that comes in a wheel.

That server's Python backend reads the arrays of NumPy 2 wrongly, without an error, so it gets an environment of its
own with NumPy 1. Only the server is installed there; everything else is seen from the running interpreter's packages,
which come after the environment's own: NumPy 1 wins, and nothing is installed twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vivavoce.checkpoint.known_models import models_home
from vivavoce.errors import DownloadError, InvalidRequest, MissingDependency
from vivavoce.files import locked

SERVER = "nvidia-pytriton==0.7.0"
"""Carries server 2.51 for x86-64 Linux with glibc 2.35; what else the package depends on is not used here."""
LIBRARIES = ("numpy>=1.26,<2", "tritonclient[grpc,http]>=2.50")
"""The clients serve programs that run inside the environment."""
STAMP = ".vivavoce-server.json"
"""Says what a finished environment was made of; one without it is completed at the next use."""
PROGRAM = "tritonserver"
_LOCK = ".vivavoce-server.lock"
_OURS = ("environment", STAMP, _LOCK)
_PACKAGES_SEEN = "zz_vivavoce_running_interpreter.pth"
"""Files of this kind are read in the order of their names: this one last."""
SOURCE = Path(__file__).resolve().parents[1]
"""Where this package is imported from: no folder of packages if it runs from a working copy."""
_OLDEST, _NEWEST = (3, 10), (3, 12)
"""NumPy 1.26 has wheels for these; with a newer Python it would have to be compiled."""
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ServerEnvironment:
    """A finished environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python3"

    @property
    def packages(self) -> Path:
        """Its own site-packages."""
        return self.folder / "lib" / f"python{_PYTHON}" / "site-packages"


def default_folder() -> Path:
    """One environment for each interpreter and its packages, beside the downloaded models."""
    facts = json.dumps([sys.version_info[:2], sys.base_prefix, _packages_seen()])
    return models_home().parent / f"triton-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def ensure_environment(folder: Path | None = None, say: Progress = lambda line: None) -> ServerEnvironment:
    """The environment in `folder` (None: `default_folder`), made or completed if need be.

    Processes that ask at once wait for the first. say: called with one line for each step. `MissingDependency`: this
    Python cannot have one; `DownloadError`: the packages could not be fetched; `InvalidRequest`: `folder` is another's.
    """
    environment = ServerEnvironment(folder.absolute() if folder is not None else default_folder())
    wanted = _facts()
    if _stamp(environment) == wanted:
        return environment
    _check_python()
    refuse_foreign(environment.folder, *_OURS)
    environment.folder.mkdir(parents=True, exist_ok=True)
    waiting = "another process makes the server's environment; waiting for it"
    with locked(environment.folder / _LOCK, on_wait=lambda: say(waiting)):
        if _stamp(environment) != wanted:
            _make(environment, say)
            (environment.folder / STAMP).write_text(json.dumps(wanted, indent=2) + "\n")
    return environment


def remove_environment(folder: Path) -> None:
    """Remove an environment, a finished or a broken-off one; `InvalidRequest`: `folder` holds something else."""
    if os.path.lexists(folder):
        refuse_foreign(folder, *_OURS)
        shutil.rmtree(folder)


def _make(environment: ServerEnvironment, say: Progress) -> None:
    if not environment.python.exists() or not environment.packages.is_dir():
        say(f"making the server's environment in {environment.folder}")
        try:
            venv.EnvBuilder(with_pip=True, clear=False, symlinks=True).create(environment.folder)
        except (subprocess.CalledProcessError, ModuleNotFoundError) as error:
            shutil.rmtree(environment.folder / "bin", ignore_errors=True)  # the next try begins anew
            raise MissingDependency(
                f"python: {sys.base_prefix} cannot make environments ({error}); install its venv and ensurepip "
                "modules (Debian: apt-get install python3-venv)"
            ) from None
    # Before the others are seen: else pip takes their packages, NumPy 2 among them, for its own.
    (environment.packages / _PACKAGES_SEEN).unlink(missing_ok=True)
    _install(environment, say, *LIBRARIES)
    _install(environment, say, "--no-deps", SERVER)
    # addsitedir reads the .pth files of each folder, which is how editable installs are found.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in _packages_seen()]
    (environment.packages / _PACKAGES_SEEN).write_text("\n".join([*lines, str(SOURCE)]) + "\n")
    # The arrays that models exchange with the server must be NumPy 1's, and the models' package must be found.
    question = "import numpy, torch, vivavoce; print(numpy.__version__)"
    answer = subprocess.run(
        [str(environment.python), "-I", "-c", question],
        capture_output=True,
        text=True,
        env=_without_python_variables(),
        check=False,
    )
    if answer.returncode or not answer.stdout.startswith("1."):
        said = (answer.stderr.strip().splitlines() or [f"numpy {answer.stdout.strip()}"])[-1]
        raise MissingDependency(
            f"server: its environment does not work ({said}); remove {environment.folder} and try again"
        )


def _install(environment: ServerEnvironment, say: Progress, *arguments: str) -> None:
    say("installing " + ", ".join(name for name in arguments if not name.startswith("-")))
    command = [str(environment.python), "-I", "-m", "pip", "install", "--no-input", "--progress-bar=off"]
    kept: list[str] = []
    with subprocess.Popen(
        [*command, "--disable-pip-version-check", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=_without_python_variables(),
        text=True,
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            kept.append(line.strip())
            if kept[-1].startswith(("Downloading", "Using cached", "Installing")):
                say(kept[-1])
    if pip.returncode:
        errors = [line for line in kept if line.startswith("ERROR")] or kept[-1:] or ["pip says nothing"]
        raise DownloadError(
            f"server: its packages could not be installed ({errors[-1].removeprefix('ERROR: ')}); connect to a "
            "package index or name one in PIP_INDEX_URL, then try again: what has arrived is kept"
        )


def _packages_seen() -> list[str]:
    """The running interpreter's folders of packages, in its order."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [folder for folder in folders if folder in sys.path and Path(folder).is_dir()]


def _facts() -> dict[str, object]:
    """What an environment is made of; other facts make another one."""
    return {
        "requirements": [SERVER, *LIBRARIES],
        "python": ".".join(map(str, sys.version_info[:3])),
        "base": sys.base_prefix,
        "packages": _packages_seen(),
        "source": str(SOURCE),
    }


def _stamp(environment: ServerEnvironment) -> object:
    try:
        return json.loads((environment.folder / STAMP).read_text())
    except (OSError, ValueError):
        return None


def _check_python() -> None:
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        raise MissingDependency(
            f"python: the server of the wheel runs with 3.10 to 3.12, this is {_PYTHON}; install vivavoce with one of "
            "those, or use NVIDIA's container, which brings its own server"
        )
    if sys.platform != "linux":
        raise MissingDependency(f"server: the wheel's server runs on Linux, not on {sys.platform}; use the container")


def refuse_foreign(folder: Path, field: str, *marks: str) -> None:
    """`InvalidRequest` about `field`: the folder holds something, but none of the files that mark it as ours."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise InvalidRequest(f"{field}: {folder} is no folder; choose another place")
    if any(folder.iterdir()) and not any((folder / mark).exists() for mark in marks):
        raise InvalidRequest(f"{field}: {folder} holds other files; choose an empty or a new folder")


def _without_python_variables() -> dict[str, str]:
    """PYTHONPATH and the like would show the environment what the server, which ignores them, does not see."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@dataclass(frozen=True)
class ServerInstallation:
    """A server that can be started; libraries: folders for the loader.

    backends: folder of backends, None: the server's own; first_on_path: folder whose `python3` the Python backend
    takes, None: as PATH says.
    """

    binary: Path
    backends: Path | None = None
    first_on_path: Path | None = None
    libraries: tuple[Path, ...] = ()

    def variables(self) -> dict[str, str]:
        """Variables of the environment that the server starts with, besides the inherited ones."""
        first = [self.first_on_path] if self.first_on_path else []
        return {
            name: os.pathsep.join(filter(None, [*map(str, folders), os.environ.get(name, "")]))
            for name, folders in (("PATH", first), ("LD_LIBRARY_PATH", self.libraries))
            if folders
        }


def find_installation(folder: Path | None = None, say: Progress = lambda line: None) -> ServerInstallation:
    """The server on PATH, as in NVIDIA's container; else the wheel's; arguments and errors as `ensure_environment`."""
    on_path = shutil.which(PROGRAM)
    return ServerInstallation(Path(on_path).absolute()) if on_path else _wheel(ensure_environment(folder, say))


def _wheel(environment: ServerEnvironment) -> ServerInstallation:
    root = environment.packages / "pytriton" / "tritonserver"
    binary, backend = root / "bin" / PROGRAM, root / "backends" / "python"
    stub = root / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    bundled = environment.packages / "nvidia_pytriton.libs"
    for path in (binary, backend, stub, bundled):
        if not path.exists():
            raise MissingDependency(f"server: {path} is missing; remove {environment.folder} and try again")
    return ServerInstallation(
        binary=binary,
        backends=_backends(environment.folder / "backends", backend, stub),
        first_on_path=environment.python.parent,
        libraries=(bundled, _python_library()),
    )


def _backends(root: Path, backend: Path, stub: Path) -> Path:
    """A tree of links, as the stub must lie beside the backend; the wheel's own folders stay as they are."""
    target = root / "python"
    target.mkdir(parents=True, exist_ok=True)
    for item in [*backend.iterdir(), stub]:
        link = target / item.name
        if item.name != "__pycache__" and not link.exists():
            link.unlink(missing_ok=True)  # one that leads nowhere: the environment was moved
            try:
                link.symlink_to(item)
            except FileExistsError:
                continue  # another process made it meanwhile
    return root


def _python_library() -> Path:
    """Where libpython lies, which the stub is linked with."""
    name = str(sysconfig.get_config_var("INSTSONAME") or "")
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    for place in (folder, folder / str(sysconfig.get_config_var("MULTIARCH") or "")):
        if name.startswith("libpython") and ".so" in name and (place / name).exists():
            return place
    raise MissingDependency(
        f"python: {sys.base_prefix} has no shared library, which the server's Python models need; install it (Debian: "
        f"apt-get install libpython{_PYTHON}) or use a Python that was built with --enable-shared"
    )
