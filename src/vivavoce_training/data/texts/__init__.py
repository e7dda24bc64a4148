"""English sentences for the corpus, from WordNet and from our own grammar; some are reserved for tests."""
