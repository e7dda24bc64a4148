"""The networks: tensors in, tensors out. They know nothing of requests, files or text."""
