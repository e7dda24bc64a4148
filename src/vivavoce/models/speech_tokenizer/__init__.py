"""Waveform to speech tokens."""
