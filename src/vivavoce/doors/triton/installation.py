"""Where a tritonserver is, and what must be around it so that its Python models find this package."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vivavoce.doors.triton.environment import ServerEnvironment, ensure_environment
from vivavoce.errors import MissingDependency

PROGRAM = "tritonserver"


@dataclass(frozen=True)
class ServerInstallation:
    """A server that can be started.

    backends: folder of backends; None: the server's own.
    first_on_path: folder whose `python3` the Python backend takes; None: as PATH says.
    libraries: folders for the loader.
    """

    binary: Path
    backends: Path | None = None
    first_on_path: Path | None = None
    libraries: tuple[Path, ...] = ()

    def variables(self) -> dict[str, str]:
        """Variables of the environment that the server starts with, besides the inherited ones."""
        ahead = {
            "PATH": [self.first_on_path] if self.first_on_path else [],
            "LD_LIBRARY_PATH": list(self.libraries),
        }
        return {
            name: os.pathsep.join(filter(None, [*map(str, folders), os.environ.get(name, "")]))
            for name, folders in ahead.items()
            if folders
        }


def find_installation(folder: Path | None = None, say: Callable[[str], None] = lambda line: None) -> ServerInstallation:
    """The server on PATH, as in NVIDIA's container; else the wheel's, whose environment is made if need be.

    Args:
        folder: of the environment; None: `environment.default_folder`.
        say: is told what is being done.

    Raises:
        MissingDependency, DownloadError, InvalidRequest: see `ensure_environment` and `wheel_installation`.
    """
    on_path = shutil.which(PROGRAM)
    return (
        ServerInstallation(Path(on_path).absolute()) if on_path else wheel_installation(ensure_environment(folder, say))
    )


def wheel_installation(environment: ServerEnvironment) -> ServerInstallation:
    """The server that an environment holds.

    Raises:
        MissingDependency: the wheel is not whole, or this Python has no shared library.
    """
    root = environment.packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    binary, backend = root / "bin" / PROGRAM, root / "backends" / "python"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
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
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise MissingDependency(
        f"python: {sys.base_prefix} has no shared library, which the server's Python models need; install it (Debian: "
        f"apt-get install libpython{version}) or use a Python that was built with --enable-shared"
    )
