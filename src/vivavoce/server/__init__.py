"""The core of a server, shared by all protocols: dispatcher, settings, keys, limits, request log and metrics."""
