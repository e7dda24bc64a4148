"""Checkpoints in the formats of other runtimes."""
