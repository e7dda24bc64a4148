"""Audio at the edge: decoding, checking, resampling and writing."""
