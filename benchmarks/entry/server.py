"""`python -m benchmarks.entry.server serve …`: `vivavoce serve` with engines that compute nothing."""

from __future__ import annotations

import sys
from functools import partial
from unittest.mock import patch

from vivavoce.cli.main import main
from vivavoce.engine_process.client import EngineClient
from vivavoce_fleet import engine_fleet

ENGINE = (sys.executable, "-m", "benchmarks.entry.engine")

if __name__ == "__main__":
    with patch.object(engine_fleet, "EngineClient", partial(EngineClient, command=ENGINE)):
        sys.exit(main())
