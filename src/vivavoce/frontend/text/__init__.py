"""Converts a request's text to segments of token ids."""
