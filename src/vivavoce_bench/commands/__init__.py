"""The commands `vivavoce bench`, `vivavoce eval` and `vivavoce plan`."""
