"""See `vivavoce_bench.evaluate.similarity`."""

from vivavoce_bench.evaluate.similarity import *  # noqa: F403
