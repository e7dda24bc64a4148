"""The flow stage: batches of chunks from speech tokens to mel; each chunk continues the chunks before it.

`stage.py` owns streams and batches; `planning.py` says what each row computes and sees, and finds its state in pages.
`padded.py` runs the network on padded rows. `packed.py` computes rows end to end with kernels, which are recorded over
fixed tensors; `packed_tables.py` works out the numbers for these.
"""

from vivavoce.engine.chunk_policy import AttentionMode
from vivavoce.engine.flow_stage.planning import FlowRow, FlowStream
from vivavoce.engine.flow_stage.stage import FlowBatch, FlowStage

__all__ = ["AttentionMode", "FlowBatch", "FlowRow", "FlowStage", "FlowStream"]
