"""The speaker encoder: speech to a vector that says who speaks."""
