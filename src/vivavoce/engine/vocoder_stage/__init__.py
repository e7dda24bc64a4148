"""The vocoder stage: pieces of mel of many requests in one batch, samples out, what streams remember between them."""

from vivavoce.engine.vocoder_stage.stage import VocoderStage
from vivavoce.engine.vocoder_stage.stream import Piece, Tails, VocoderStream

__all__ = ["Piece", "Tails", "VocoderStage", "VocoderStream"]
