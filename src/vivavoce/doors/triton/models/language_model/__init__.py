"""The parts of the model `tensorrt_llm`: its tensors, and what draws speech tokens behind them."""
