"""How the mini model is made, and how a user trains or fine-tunes a model of the same family."""
