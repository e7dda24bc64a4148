"""Other runtimes in the place of a network, and the file formats that they share with exports.

vLLM and TensorRT-LLM speak for the language model; the flow comes from exported files.
"""
