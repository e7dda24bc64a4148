"""The models of the repository. A short `model.py` runs each model in Triton's Python backend."""
