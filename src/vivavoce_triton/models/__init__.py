"""What the repository's models do; a `model.py` of a few lines serves each, which Triton's Python backend runs."""
