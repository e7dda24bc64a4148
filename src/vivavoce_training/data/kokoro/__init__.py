"""The teacher of the mini model: Kokoro-82M, which is downloaded from package registries and not shipped."""
