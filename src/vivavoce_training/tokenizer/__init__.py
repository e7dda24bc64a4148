"""The speech tokenizer: speech → 25 tokens per second, which encode the content and not the speaker."""
