"""Measures the engine on one GPU: all figures of the table in docs/performance.md in one run."""
