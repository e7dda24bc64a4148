"""TensorRT-LLM checkpoints of a merged language model, written without TensorRT-LLM.

A checkpoint has `config.json` and a `rank{pp_rank * tp + tp_rank}.safetensors` for each GPU. TensorRT-LLM releases up
to 1.2 build engines from it. Everything here runs on the CPU, one layer at a time.
"""
