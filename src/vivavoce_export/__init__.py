"""Export of checkpoints to the formats of other runtimes."""
