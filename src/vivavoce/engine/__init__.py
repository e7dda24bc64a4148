"""Requests of ids and features in, audio out. The engine knows tensors and time; not HTTP, text or files."""
