"""Text, voices and recordings become requests of ids for the engine, and its audio becomes speech."""
