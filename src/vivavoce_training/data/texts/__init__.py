"""English sentences for the corpus: from WordNet and from a grammar of our own; some are reserved for tests."""
