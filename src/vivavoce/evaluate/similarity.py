"""See `vivavoce_bench.evaluate.speaking`."""

from vivavoce_bench.evaluate.speaking import *  # noqa: F403
