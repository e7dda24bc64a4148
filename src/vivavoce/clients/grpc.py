"""Re-exports the names of `vivavoce_grpc.client` for programs that import this module."""

from vivavoce_grpc.client import *  # noqa: F403
