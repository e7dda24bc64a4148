"""Official parameter names ↔ ours, as one table per part; read in both directions.

`{n}` stands for a block's number and matches digits. A row names a prefix that ends at a dot or at the name's end;
the first row that fits wins. Names that no row fits are the same on both sides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ATTENTION_AND_FEED_FORWARD = (
    (".norm1", ".attention_norm"),
    (".attn1.to_q", ".attention.query"),
    (".attn1.to_k", ".attention.key"),
    (".attn1.to_v", ".attention.value"),
    (".attn1.to_out.0", ".attention.out"),
    (".norm3", ".feed_forward_norm"),
    (".ff.net.0.proj", ".feed_forward.expand"),
    (".ff.net.2", ".feed_forward.contract"),
)
_RESNET = (
    (".mlp.1", ".time_projection"),
    (".block1.block.0", ".conv1"),
    (".block1.block.2", ".norm1"),
    (".block2.block.0", ".conv2"),
    (".block2.block.2", ".norm2"),
    (".res_conv", ".shortcut"),
)
_CONFORMER = (
    (".self_attn.linear_q", ".attention.query"),
    (".self_attn.linear_k", ".attention.key"),
    (".self_attn.linear_v", ".attention.value"),
    (".self_attn.linear_out", ".attention.out"),
    (".self_attn.linear_pos", ".attention.position"),
    (".self_attn.pos_bias_u", ".attention.content_bias"),
    (".self_attn.pos_bias_v", ".attention.position_bias"),
    (".norm_mha", ".attention_norm"),
    (".norm_ff", ".feed_forward_norm"),
    (".feed_forward.w_1", ".feed_forward.expand"),
    (".feed_forward.w_2", ".feed_forward.contract"),
)

Row = tuple[str, str]


def _under(official: str, ours: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple((official + theirs, ours + own) for theirs, own in rows)


def _unet_level(official: str, ours: str) -> tuple[Row, ...]:
    return (
        *_under(f"{official}.0", f"{ours}.resnet", _RESNET),
        *_under(f"{official}.1.{{n}}", f"{ours}.blocks.{{n}}", _ATTENTION_AND_FEED_FORWARD),
        (f"{official}.2", f"{ours}.conv"),
    )


LM = (
    ("llm.model.model.embed_tokens", "text_embedding"),
    ("llm.model.model.layers.{n}.self_attn", "layers.{n}.attention"),
    ("llm.model.model.layers.{n}.mlp", "layers.{n}.mlp"),
    ("llm.model.model.layers.{n}.input_layernorm", "layers.{n}.attention_norm"),
    ("llm.model.model.layers.{n}.post_attention_layernorm", "layers.{n}.mlp_norm"),
    ("llm.model.model.norm", "norm"),
    ("llm_embedding", "control_embedding"),
    ("llm_decoder", "speech_head"),
)
FLOW = (
    ("input_embedding", "token_embedding"),
    ("spk_embed_affine_layer", "speaker_projection"),
    ("encoder_proj", "encoder.mu_projection"),
    ("encoder.embed.out.0", "encoder.embed.linear"),
    ("encoder.embed.out.1", "encoder.embed.norm"),
    ("encoder.up_embed.out.0", "encoder.up_embed.linear"),
    ("encoder.up_embed.out.1", "encoder.up_embed.norm"),
    ("encoder.pre_lookahead_layer.conv1", "encoder.lookahead_conv"),
    ("encoder.pre_lookahead_layer.conv2", "encoder.history_conv"),
    *_under("encoder.encoders.{n}", "encoder.blocks.{n}", _CONFORMER),
    ("encoder.up_layer.conv", "encoder.up_conv"),
    *_under("encoder.up_encoders.{n}", "encoder.up_blocks.{n}", _CONFORMER),
    ("encoder.after_norm", "encoder.norm"),
    ("decoder.estimator.time_mlp.linear_1", "estimator.time_embedding.expand"),
    ("decoder.estimator.time_mlp.linear_2", "estimator.time_embedding.project"),
    *_unet_level("decoder.estimator.down_blocks.0", "estimator.down"),
    *_unet_level("decoder.estimator.mid_blocks.{n}", "estimator.mid.{n}"),
    *_unet_level("decoder.estimator.up_blocks.0", "estimator.up"),
    ("decoder.estimator.final_block.block.0", "estimator.final_conv"),
    ("decoder.estimator.final_block.block.2", "estimator.final_norm"),
    ("decoder.estimator.final_proj", "estimator.out"),
)
VOCODER = (
    *((f"f0_predictor.condnet.{2 * i}", f"f0.convs.{i}") for i in range(5)),
    ("f0_predictor.classifier", "f0.out"),
    ("m_source.l_linear", "source.merge"),
    ("source_downs.{n}", "source_downs.{n}"),
    ("ups.{n}", "ups.{n}"),
)


@dataclass(frozen=True)
class NameTable:
    """One part's names, with what its official file holds besides parameters that we use."""

    rows: tuple[Row, ...]
    unused: frozenset[str] = frozenset()
    """Official keys that are read and dropped."""

    def to_ours(self, official: str) -> str:
        """Our name of an official parameter."""
        return _translate(official, [(theirs, ours) for theirs, ours in self.rows])

    def to_official(self, ours: str) -> str:
        """The official name of one of our parameters."""
        return _translate(ours, [(own, theirs) for theirs, own in self.rows])


def _translate(name: str, rows: list[Row]) -> str:
    for source, target in rows:
        pattern = re.escape(source).replace(re.escape("{n}"), r"(\d+)")
        match = re.match(rf"{pattern}(?=\.|$)", name)
        if match:
            for number in match.groups():
                target = target.replace("{n}", number, 1)
            return target + name[match.end() :]
    return name


LM_NAMES = NameTable(LM, unused=frozenset({"llm.model.lm_head.weight"}))
FLOW_NAMES = NameTable(FLOW)
VOCODER_NAMES = NameTable(VOCODER)
