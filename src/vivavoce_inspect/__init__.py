"""Commands that inspect without speaking: the contents of a model folder, and the state of a machine."""
