"""Finds, reads and writes official model folders; has no model code."""
