"""The names of `vivavoce_bench`, where scripts look for them."""

from vivavoce_bench import *  # noqa: F403
