"""The models of the repository; a short `model.py` runs each in Triton's Python backend."""
