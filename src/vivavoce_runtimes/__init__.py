"""Other runtimes in the place of a network: vLLM and TensorRT-LLM, and the flow from exported files."""
