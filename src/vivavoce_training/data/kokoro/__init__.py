"""The teacher of the mini model: Kokoro-82M, fetched from package registries, never part of the package."""
