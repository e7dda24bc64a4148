"""Serve speech from another Triton server through the protocols of `vivavoce serve`."""
