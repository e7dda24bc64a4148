"""The official models by name: where they are published, how they are fetched, where they lie on disk."""
