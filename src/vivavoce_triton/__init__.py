"""A model repository for NVIDIA's Triton Inference Server, and what makes, fills and serves it."""
