"""The speech language model, which generates speech tokens from text tokens."""
