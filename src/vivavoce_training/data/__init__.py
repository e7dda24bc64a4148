"""Speech to learn from: sentences, speakers, and the corpus on disk."""
