"""Sizes of a Qwen2 model: all that decides the shapes of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from vivavoce.checkpoint.config import LMConfig, SamplingDefaults, Vocabulary


@dataclass(frozen=True)
class QwenSizes:
    """As `config.json` of a Hugging Face Qwen2 folder has them."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    tied: bool
    """The head is the embedding."""

    @property
    def head_size(self) -> int:
        """Channels of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Outputs of the query, key and value projections."""
        return self.hidden_size, self.num_kv_heads * self.head_size, self.num_kv_heads * self.head_size

    @classmethod
    def of_merged(cls, config: LMConfig, vocab_size: int) -> QwenSizes:
        """Sizes of CosyVoice2's language model with one table of `vocab_size` ids."""
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            vocab_size=vocab_size,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            max_positions=config.max_positions,
            tied=False,
        )

    def backbone(self) -> LMConfig:
        """The same sizes for our own network's layers, whose tables and sampling these have no part in."""
        return LMConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            text_vocab_size=self.vocab_size,
            rms_norm_eps=self.rms_norm_eps,
            rope_theta=self.rope_theta,
            max_positions=self.max_positions,
            mix_text=0,
            mix_speech=0,
            vocabulary=Vocabulary(0, 0, 0, 0, 0, 0, 0),
            sampling=SamplingDefaults(1.0, 1, 0, 0.0),
        )
