"""Mel spectrogram → waveform."""
