"""The vocoder stage: computes samples from pieces of mel, in batches, and keeps streams' tails between pieces."""

from vivavoce.engine.vocoder_stage.stage import Tails, VocoderRow, VocoderStage, VocoderStream

__all__ = ["Tails", "VocoderRow", "VocoderStage", "VocoderStream"]
