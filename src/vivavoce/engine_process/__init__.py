"""The engine in a process of its own, and what the doors of a server ask of it."""
