"""The networks. They compute tensors from tensors, and know nothing about requests or text."""
