"""The flow stage: batches of chunks from speech tokens to mel, each chunk continuing what was computed before it.

`stage.py` owns streams and batches; `planning.py` says what each row computes and sees, and finds its state in pages.
`padded.py` computes padded rows by the network as it is; `packed.py` computes rows end to end by kernels, recorded over
tensors that stay where they are, from the numbers that `packed_tables.py` works out.
"""

from vivavoce.engine.chunk_policy import AttentionMode
from vivavoce.engine.flow_stage.planning import FlowRow, FlowStream
from vivavoce.engine.flow_stage.stage import FlowBatch, FlowStage

__all__ = ["AttentionMode", "FlowBatch", "FlowRow", "FlowStage", "FlowStream"]
