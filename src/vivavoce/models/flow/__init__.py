"""Speech tokens → mel spectrogram by conditional flow matching."""
