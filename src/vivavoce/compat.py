"""The names of `vivavoce_dialects.compat`, where scripts look for them."""

from vivavoce_dialects.compat import *  # noqa: F403
