"""The vocoder stage: pieces of mel of many requests in one batch, samples out, what streams remember between them."""

from vivavoce.engine.vocoder_stage.stage import VocoderStage
from vivavoce.engine.vocoder_stage.stream import CONTEXT_FRAMES, OVERLAP_FRAMES, Piece, Tails, VocoderStream

__all__ = ["CONTEXT_FRAMES", "OVERLAP_FRAMES", "Piece", "Tails", "VocoderStage", "VocoderStream"]
