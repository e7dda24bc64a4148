"""Turns requests of ids and features into audio. The engine knows tensors and time; not HTTP, text or files."""
