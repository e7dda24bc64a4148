"""A reading of our own: numbers, dates, units, addresses and markup as a person would read them out."""
