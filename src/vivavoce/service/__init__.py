"""What every door shares: text, voices, audio and the synthesizer."""
