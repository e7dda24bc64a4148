"""Audio input and output: decoding, checking, resampling and encoding."""
