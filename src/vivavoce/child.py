"""Processes of our own that run a module of this package, isolated from the folder in which they are started."""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path

# Python puts the current folder before everything else for `-m` and `-c`: a file `soundfile.py` there would be run in
# the library's place. (`-P` prevents that, from Python 3.11 on.) The package is taken from where this process found
# it; libraries that lie beside it are found last, so that none of them hides a module of Python's own.
_BOOT = """
import sys
if sys.path[0] == "": del sys.path[0]
home, module = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, home)
import vivavoce
del sys.path[0]
if home not in sys.path: sys.path.append(home)
from importlib import import_module
sys.exit(import_module(module).main())
"""


def python_command(module: str, *arguments: str, python: Path | str = sys.executable) -> tuple[str, ...]:
    """The command that calls a module's `main` with this Python. The variable PYTHONPATH works as it always does.

    python: another interpreter that has what the module imports.
    """
    return (str(python), "-c", _BOOT, str(Path(__file__).parents[1]), module, *arguments)


def end_with_parent() -> None:
    """From now on this process is killed when the thread that started it ends, even while it is stopped; on Linux."""
    if sys.platform == "linux":
        import ctypes

        parent, set_parent_death_signal = os.getppid(), 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has just ended
            os.kill(os.getpid(), signal.SIGKILL)


def shut_in(memory_bytes: int) -> None:
    """From now on this process can open neither file nor socket, and not undo that; what it has open it keeps, but what
    it prints is lost. memory_bytes: of addresses in all, where the system counts them (Linux).
    """
    import ctypes
    import resource

    nothing = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    limits = {resource.RLIMIT_NOFILE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = memory_bytes
    for limit, most in limits.items():
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    if sys.platform == "linux":  # root could raise them again
        version_3 = 0x20080522
        ctypes.CDLL(None).capset(struct.pack("Ii", version_3, 0), bytes(24))
