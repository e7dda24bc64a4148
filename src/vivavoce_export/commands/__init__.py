"""The command `vivavoce export`."""
