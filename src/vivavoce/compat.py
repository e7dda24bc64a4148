"""Re-exports the names of `vivavoce_dialects.compat` for scripts that import `vivavoce.compat`."""

from vivavoce_dialects.compat import *  # noqa: F403
