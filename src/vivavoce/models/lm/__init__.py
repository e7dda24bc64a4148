"""The speech language model: text tokens in, speech tokens out."""
