"""The flow stage: batches of chunks from speech tokens to mel, each chunk continuing what was computed before it.

Files: `stage.py` is the door, `job.py` one running batch and `lane.py` its tensors; `blocks.py` says what sees what;
`planning.py` finds each row's state, which lies in `pool.py`'s pages and is read through `paged_memory.py`;
`prompts.py` shares the state of voices.

With kernels `packed_lane.py` stands in for `lane.py`: rows end to end instead of padded (`packed_tables.py`), steps
recorded over tensors that stay where they are (`packed_buffers.py`), voices for all rows at once (`voices.py`), and the
token encoder likewise packed and recorded (`packed_encoding.py`, `encoder_tables.py`, `encoder_buffers.py`).
"""

from vivavoce.engine.flow_stage.job import FlowJob
from vivavoce.engine.flow_stage.stage import FlowStage, FlowStatistics
from vivavoce.engine.flow_stage.stream import FlowStream
from vivavoce.engine.flow_stage.work import Attention, FlowChunk, PromptWork

__all__ = ["Attention", "FlowChunk", "FlowJob", "FlowStage", "FlowStatistics", "FlowStream", "PromptWork"]
