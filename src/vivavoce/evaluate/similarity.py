"""Re-exports `vivavoce_bench.evaluate.speaking` for scripts that import `vivavoce.evaluate.similarity`."""

from vivavoce_bench.evaluate.speaking import *  # noqa: F403
