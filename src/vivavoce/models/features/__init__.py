"""Waveform features, equal to the official front end by numbers."""
