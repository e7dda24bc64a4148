"""The engine on one GPU: every figure of docs/performance.md's table in one run."""
