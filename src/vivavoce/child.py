"""Child processes that run a module of this package, isolated from the current folder."""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path

# For `-m` and `-c`, Python puts the current folder first in sys.path: a file `soundfile.py` there would run instead of
# the library (`-P` prevents that, but only from Python 3.11 on). The package is imported from its folder in this
# process; that folder then comes last in sys.path, so that nothing in it hides a module of Python's own.
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
    """Return the command that calls a module's `main` in a new process. PYTHONPATH has its usual effect there.

    python: the interpreter; it must have the module's dependencies.
    """
    return (str(python), "-c", _BOOT, str(Path(__file__).parents[1]), module, *arguments)


def ignore_signals(*more: signal.Signals) -> None:
    """Ignore signals that a terminal or a service manager sends to all processes; they are for the parent."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, *more):
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """On Linux: have the kernel kill this process, even a stopped one, when the thread that started it ends."""
    if sys.platform == "linux":
        import ctypes

        parent, set_parent_death_signal = os.getppid(), 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent has just ended
            os.kill(os.getpid(), signal.SIGKILL)


def shut_in(memory_bytes: int) -> None:
    """Irrevocably forbid this process to open files or sockets; memory_bytes: limit of the address space (Linux)."""
    import ctypes
    import resource

    nothing = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    limits = {resource.RLIMIT_NOFILE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = memory_bytes
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    if sys.platform == "linux":  # drop all capabilities, with which root could raise the limits again
        version_3 = 0x20080522
        ctypes.CDLL(None).capset(struct.pack("Ii", version_3, 0), bytes(24))
