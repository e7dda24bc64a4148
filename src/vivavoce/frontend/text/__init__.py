"""Converts the text of a request to the token ids of its segments."""
