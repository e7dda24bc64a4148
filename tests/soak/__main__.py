"""`python -m tests.soak`; see `soak`."""

from __future__ import annotations

from tests.soak.soak import main

if __name__ == "__main__":
    raise SystemExit(main())
