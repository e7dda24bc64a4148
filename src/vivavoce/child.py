"""Processes of our own that run a module of this package, isolated from the folder in which they are started."""

from __future__ import annotations

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
