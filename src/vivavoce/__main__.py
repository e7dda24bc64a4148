"""`python -m vivavoce` is the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# `-m` puts the working folder first: a folder `triton` or `torch` in it would stand in for the library of that name.
# Only a checkout that is run where it lies is found there.
if sys.path[:1] == [os.getcwd()] and Path(__file__).parent.parent != Path.cwd():
    del sys.path[0]

from vivavoce.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
