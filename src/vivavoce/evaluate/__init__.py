"""Re-exports the names of `vivavoce_bench.evaluate` for scripts that import `vivavoce.evaluate`."""

from vivavoce_bench.evaluate import *  # noqa: F403
