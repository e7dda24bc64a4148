"""Make and serve a model repository for NVIDIA's Triton Inference Server, and send requests to such a server."""
