"""`python -m vivavoce` is the command line."""

from __future__ import annotations

import os
import sys

# `-m` puts the current folder first in sys.path: a folder `triton` or `torch` there would hide the library. The folder
# stays in sys.path only if it is the checkout itself. The imports above are not protected. The command `vivavoce` does
# not have this problem.
if __name__ == "__main__" and sys.path[:1] == [os.getcwd()] != [os.path.dirname(os.path.dirname(__file__))]:
    del sys.path[0]

from vivavoce.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
