"""The names of `vivavoce_bench.evaluate`, where scripts look for them."""

from vivavoce_bench.evaluate import *  # noqa: F403
