"""The networks: tensors in, tensors out. They do not depend on requests, files or text."""
