"""The names of `vivavoce_triton.client.load`, where scripts look for them."""

from vivavoce_triton.client.load import *  # noqa: F403
