"""How each language is spoken: one file per language, each with a `normalize(text) -> str`."""
