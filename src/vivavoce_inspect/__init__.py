"""Commands that show the contents of a model folder, and check a machine."""
