"""The names of `vivavoce_triton.client.utterance`, where scripts look for them."""

from vivavoce_triton.client.utterance import *  # noqa: F403
