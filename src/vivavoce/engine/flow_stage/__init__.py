"""The flow stage: batches of chunks from speech tokens to mel, each chunk continuing what was computed before it.

Files: `stage.py` is the door, `job.py` one running batch and `lane.py` its tensors; `blocks.py` says what sees what;
`planning.py` finds each row's state, which lies in `pool.py`'s pages and is read through `paged_memory.py`;
`prompts.py` shares the state of voices.
"""

from vivavoce.engine.flow_stage.job import FlowJob
from vivavoce.engine.flow_stage.stage import FlowStage, FlowStatistics
from vivavoce.engine.flow_stage.stream import FlowStream
from vivavoce.engine.flow_stage.work import Attention, FlowChunk, PromptWork

__all__ = ["Attention", "FlowChunk", "FlowJob", "FlowStage", "FlowStatistics", "FlowStream", "PromptWork"]
