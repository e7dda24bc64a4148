"""The flow stage: computes mel frames from speech tokens in batches; each chunk continues the chunks before it.

`stage.py` owns streams and batches. `planning.py` decides what each row computes and attends to, and which pages hold
its state. `padded.py` runs the network on padded rows. `packed.py` runs our kernels on rows that lie end to end, with
CUDA graphs over fixed tensors; `packed_tables.py` computes the index tables of these kernels.
"""

from vivavoce.engine.chunk_policy import AttentionMode
from vivavoce.engine.flow_stage.planning import FlowRow, FlowStream
from vivavoce.engine.flow_stage.stage import FlowBatch, FlowStage

__all__ = ["AttentionMode", "FlowBatch", "FlowRow", "FlowStage", "FlowStream"]
