"""The vocoder stage: pieces of mel of many requests in one batch, samples out, and the tails kept between pieces."""

from vivavoce.engine.vocoder_stage.stage import Tails, VocoderRow, VocoderStage, VocoderStream

__all__ = ["Tails", "VocoderRow", "VocoderStage", "VocoderStream"]
