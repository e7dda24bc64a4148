"""What the engine reaches on one GPU: every figure of docs/performance.md's table in one run."""
