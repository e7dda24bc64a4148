"""Waveform to speaker embedding."""
