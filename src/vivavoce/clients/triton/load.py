"""Re-exports the names of `vivavoce_triton.client.load` for scripts that import `vivavoce.clients.triton.load`."""

from vivavoce_triton.client.load import *  # noqa: F403
