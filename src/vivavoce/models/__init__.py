"""The networks of the models: they compute tensors from tensors, independent of requests and texts."""
