"""The teacher of the mini model: Kokoro-82M. It is downloaded from package registries and not shipped."""
