"""The names of `vivavoce_triton.client.http_client`, where scripts look for them."""

from vivavoce_triton.client.http_client import *  # noqa: F403
