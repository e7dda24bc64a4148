"""Voices: what is extracted once from a reference recording and kept."""
