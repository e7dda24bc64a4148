"""TensorRT-LLM checkpoints of a merged language model, without TensorRT-LLM.

`config.json`, and a `rank{pp_rank * tp + tp_rank}.safetensors` for each GPU, as its releases up to 1.2 build engines
from them. Everything here computes on the CPU, one layer at a time.
"""
