"""`python -m vivavoce` is the command line."""

from __future__ import annotations

import os
import sys

# `-m` puts the current folder first in sys.path: a folder `triton` or `torch` in it would hide that library. It stays
# only if it is the checkout itself. Imports before this line cannot be protected here; the command `vivavoce` is not
# affected at all.
if __name__ == "__main__" and sys.path[:1] == [os.getcwd()] != [os.path.dirname(os.path.dirname(__file__))]:
    del sys.path[0]

from vivavoce.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
