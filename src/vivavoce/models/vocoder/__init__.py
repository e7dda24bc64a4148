"""The vocoders, which compute waveforms from mel spectrograms."""
