"""Converts texts, voices and recordings to requests of token ids for the engine, and the engine's audio to speech."""
