"""The engine in a process of its own, and its interface for a server."""
