"""Voices: features that are extracted once from a reference recording, and their storage."""
