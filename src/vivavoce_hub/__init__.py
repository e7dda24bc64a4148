"""Fetches published models from Hugging Face and ModelScope; `checkpoint/known_models.py` lists them."""
