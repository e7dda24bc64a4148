"""The models of the repository; Triton's Python backend runs each by a `model.py` of a few lines."""
