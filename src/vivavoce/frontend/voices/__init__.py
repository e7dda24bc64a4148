"""Voices: features extracted once from a reference recording, and stores that keep them."""
