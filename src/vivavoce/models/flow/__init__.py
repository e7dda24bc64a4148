"""The flow: computes mel spectrograms from speech tokens by conditional flow matching."""
