"""The merged language model as a Hugging Face folder: written, and read back."""
