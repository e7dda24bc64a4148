"""Make and serve a model repository for NVIDIA's Triton Inference Server, and ask such a server."""
