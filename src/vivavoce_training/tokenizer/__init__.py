"""The speech tokenizer: speech to 25 tokens a second that say what was spoken and not who spoke."""
