"""The cost of HTTP on top of the engine; `python -m benchmarks.http_overhead` measures it."""
