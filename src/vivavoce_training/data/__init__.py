"""Training data: sentences, speakers, and the corpus on disk."""
