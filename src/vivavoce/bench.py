"""Re-exports the names of `vivavoce_bench` for scripts that import `vivavoce.bench`."""

from vivavoce_bench import *  # noqa: F403
