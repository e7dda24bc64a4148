"""Fine-tuning of a checkpoint on a user's own recordings."""
