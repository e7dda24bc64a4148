"""The engine makes audio from text ids and voice features. HTTP, written text and files are handled elsewhere."""
