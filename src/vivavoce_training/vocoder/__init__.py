"""Training of the vocoder: the mel spectrogram of the corpus → its waveform."""
