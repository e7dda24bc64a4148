"""What HTTP adds to the engine; `python -m benchmarks.http_overhead` measures it."""
