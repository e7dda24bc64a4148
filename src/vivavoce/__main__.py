"""`python -m vivavoce` is the command line."""

from __future__ import annotations

import os
import sys

# `-m` puts the working folder first: a folder `triton` or `torch` in it would stand in for the library of that name.
# Only a checkout that is run where it lies is found there. What Python and the package import before this line is
# beyond our reach: only the command `vivavoce` takes nothing at all from there.
if __name__ == "__main__" and sys.path[:1] == [os.getcwd()] != [os.path.dirname(os.path.dirname(__file__))]:
    del sys.path[0]

from vivavoce.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
