"""The language-model stage: decodes many sequences together in static slots.

`LMStage` runs the network. A `DecodeRun` is one stretch of decoding in a slot. `plain_run` makes the only run of a
complete text, and `StreamingPrompt` the successive runs of a text that arrives during synthesis.
"""

from __future__ import annotations

from vivavoce.engine.lm_stage.slots import DecodeRun, StreamingPrompt, plain_run
from vivavoce.engine.lm_stage.stage import LMStage, Sampled

__all__ = ["DecodeRun", "LMStage", "Sampled", "StreamingPrompt", "plain_run"]
