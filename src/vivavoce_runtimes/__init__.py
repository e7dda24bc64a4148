"""Other runtimes that run networks: vLLM and TensorRT-LLM for the language model, exported files for the flow."""
