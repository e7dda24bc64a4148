"""Finds, reads and writes model folders in the official layout; contains no networks."""
