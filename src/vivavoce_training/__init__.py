"""Makes the mini model, and trains or fine-tunes a user's own model of the same family."""
