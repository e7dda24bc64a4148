"""Backends that run a network outside our own PyTorch code, and the files that `vivavoce export` writes for them.

The language model runs in vLLM or TensorRT-LLM. The flow's networks run from exported files.
"""
