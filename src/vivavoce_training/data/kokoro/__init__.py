"""The teacher of the mini model: Kokoro-82M, fetched from package registries and run here, never part of the package."""
