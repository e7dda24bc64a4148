"""The speaker encoder: speech → a vector that identifies the speaker."""
