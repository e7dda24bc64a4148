"""Re-exports the names of `vivavoce_triton.client.http_client` for scripts that import this module."""

from vivavoce_triton.client.http_client import *  # noqa: F403
