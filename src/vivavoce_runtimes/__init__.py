"""Other runtimes that run networks, and the file formats that they share with exports.

vLLM and TensorRT-LLM run the language model; the flow runs from exported files.
"""
