"""Re-exports the names of `vivavoce_triton.client.utterance` for scripts that import this module."""

from vivavoce_triton.client.utterance import *  # noqa: F403
