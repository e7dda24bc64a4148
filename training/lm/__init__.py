"""Training of the language model: text tokens → speech tokens."""
