"""Loads weight files into modules. Runs no code from pickles, and checks every name and shape.

Each part (llm, flow, hift) has a table that translates official parameter names to this program's names, and back. A
row is a pair of prefixes, official and own; a prefix ends at a dot or at the name's end, and its `{n}`, the number of a
block, matches digits. The first matching row is used. A name without a matching row is the same on both sides.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vivavoce.checkpoint.folder import refuse_pointer
from vivavoce.checkpoint.torch_file import MAX_BYTES, read_torch_file
from vivavoce.errors import CheckpointError

_TRAINING_COUNTERS = frozenset({"epoch", "step"})
_WRAPPER = "module."
_GAN_PREFIX = "generator."
_NEW_NORM = (".parametrizations.weight.original0", ".parametrizations.weight.original1")
_OLD_NORM = (".weight_g", ".weight_v")
_PARTS = ("llm", "flow", "hift")
_VARIANT = re.compile(rf"(?:{'|'.join(_PARTS)})\.([\w-]+)\.(?:pt|safetensors)")
_MAX_LISTED = 6


def find_part(folder: Path, part: str, variant: str | None = None) -> Path:
    """Find the weight file of `part` (llm, flow, hift). Prefers `part.variant` to `part`, then .safetensors to .pt."""
    for stem in [f"{part}.{variant}", part] if variant else [part]:
        for path in (folder / f"{stem}.safetensors", folder / f"{stem}.pt"):
            if path.is_file():
                return path
    others = sorted(path.name for path in folder.glob(f"{part}.*.pt"))
    hint = f"; there is {', '.join(others)}: name it as the variant" if others else ""
    raise CheckpointError(f"model: {part}.pt is missing in {folder.name}{hint or '; download the whole folder'}")


def check_variant(folder: Path, variant: str | None) -> None:
    """Raise CheckpointError unless at least one part has a file of this variant; other parts use their plain files."""
    if not variant:
        return
    found = {match[1] for path in folder.iterdir() if (match := _VARIANT.fullmatch(path.name))}
    if variant not in found:
        advice = f"take one of {', '.join(sorted(found))}, or none" if found else "the folder has none, leave it out"
        raise CheckpointError(f"variant: {variant!r} is not in {folder.name}; {advice}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the named tensors of a file. A dict inside a dict with no other key, such as {"module": …}, is unwrapped,
    and the prefix "module." of all names is removed, as DeepSpeed and DistributedDataParallel write them."""
    if path.suffix == ".safetensors":
        refuse_pointer(path)
        try:
            with path.open("rb") as file:
                if int.from_bytes(file.read(8), "little") > MAX_BYTES:
                    raise ValueError("names without end")
            state: Any = load_file(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path.name}: is missing in {path.parent.name}; download the whole folder") from None
        except (SafetensorError, OSError, ValueError):
            raise CheckpointError(f"{path.name}: is corrupt or too large; make or download it again") from None
    else:
        state = read_torch_file(path)
    tensors: Any = state
    while isinstance(tensors, Mapping):
        tensors = {key: value for key, value in tensors.items() if key not in _TRAINING_COUNTERS}
        inner = next(iter(tensors.values()), None)
        if len(tensors) != 1 or not isinstance(inner, Mapping):
            break
        tensors = inner
    if not tensors or not isinstance(tensors, Mapping):
        raise CheckpointError(f"{path.name}: holds no named tensors; download the file again")
    if all(key.startswith(_WRAPPER) for key in tensors):
        tensors = {key.removeprefix(_WRAPPER): value for key, value in tensors.items()}
    strange = [key for key, value in tensors.items() if not isinstance(value, Tensor)]
    if strange:
        raise CheckpointError(
            f"{path.name}: holds more than tensors: {_listed(strange)}; save the dict of named tensors alone"
        )
    return tensors


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace each pair of weight norm by the weight g · v / ‖v‖, with norms over all dimensions but the first
    (arXiv:1602.07868, eq. 2). Also remove the prefix "generator."."""
    folded = {key.replace(_GAN_PREFIX, ""): value for key, value in state.items()}
    for scale_name, direction_name in (_NEW_NORM, _OLD_NORM):
        for key in [key for key in folded if key.endswith(scale_name)]:
            stem = key.removesuffix(scale_name)
            if stem + direction_name in folded:
                scale, direction = folded.pop(key), folded.pop(stem + direction_name)
                folded[stem + ".weight"] = _weight(stem, scale, direction)
    return folded


def _weight(stem: str, scale: Tensor, direction: Tensor) -> Tensor:
    fits = direction.dim() > 1 and scale.shape == (direction.shape[0],) + (1,) * (direction.dim() - 1)
    if not (fits and scale.is_floating_point() and direction.is_floating_point()):
        raise CheckpointError(
            f"model: the two parts of {stem}.weight have the shapes {list(scale.shape)} and {list(direction.shape)}, "
            "which do not fit weight norm; download the file again"
        )
    inner = tuple(range(1, direction.dim()))
    scale, direction = scale.float(), direction.float()  # a norm summed in 16 bits would be too inexact
    return scale * direction / torch.linalg.vector_norm(direction, dim=inner, keepdim=True)


def load_into(module: nn.Module, state: Mapping[str, Tensor], names: NameTable, file: str, dtype: torch.dtype) -> None:
    """Load tensors into a module. If keys are missing, unexpected or of the wrong shape, raise a CheckpointError that
    lists them by official name. file: name of the file in this message."""
    targets = module.state_dict()
    wanted = {names.to_official(own): own for own in targets}
    given = state.keys() - names.unused
    found = {
        "missing": sorted(wanted.keys() - given),
        "unexpected": sorted(given - wanted.keys()),
        "of the wrong shape": [
            f"{key} {list(state[key].shape)} instead of {list(targets[own].shape)}"
            for key, own in sorted(wanted.items())
            if key in given and state[key].shape != targets[own].shape
        ],
    }
    problems = [f"{len(keys)} {what} ({_listed(keys)})" for what, keys in found.items() if keys]
    if problems:
        raise CheckpointError(f"model: {file} does not fit its configuration: {'; '.join(problems)}")
    # Copy the memory-mapped tensors: a change of the file while the program runs must not change the weights.
    copies = {}
    for key, own in wanted.items():
        copies[own] = state[key].to(dtype, copy=True)
        page_out(state[key])
    module.load_state_dict(copies, assign=True)


def page_out(tensor: Tensor) -> None:
    """Let Linux page out a memory-mapped tensor that was copied: it no longer counts as memory of this process."""
    if sys.platform == "linux":
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            advice = 21  # MADV_PAGEOUT; fails on older kernels
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def _listed(items: Sequence[str]) -> str:
    more = len(items) - _MAX_LISTED
    return ", ".join(item[:80] for item in items[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


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

Rows = tuple[tuple[str, str], ...]


def _under(official: str, ours: str, rows: Rows) -> Rows:
    return tuple((official + theirs, ours + own) for theirs, own in rows)


def _unet_level(official: str, ours: str, norm: int = 2, conv: str = "") -> Rows:
    resnet = (
        (".mlp.1", ".time_projection"),
        (".block1.block.0", ".conv1"),
        (f".block1.block.{norm}", ".norm1"),
        (".block2.block.0", ".conv2"),
        (f".block2.block.{norm}", ".norm2"),
        (".res_conv", ".shortcut"),
    )
    return (
        *_under(f"{official}.0", f"{ours}.resnet", resnet),
        *_under(f"{official}.1.{{n}}", f"{ours}.blocks.{{n}}", _ATTENTION_AND_FEED_FORWARD),
        (f"{official}.2{conv}", f"{ours}.conv"),
    )


def _conformer(official: str, ours: str) -> Rows:
    return (
        (f"{official}.embed.out.0", f"{ours}.embed.linear"),
        (f"{official}.embed.out.1", f"{ours}.embed.norm"),
        (f"{official}.after_norm", f"{ours}.norm"),
        *_under(f"{official}.encoders.{{n}}", f"{ours}.blocks.{{n}}", _CONFORMER),
    )


def _unet_flow(norm: int) -> Rows:
    """Return the rows that both flows with a U-Net have; norm: index of the norm in an official block of layers."""
    return (
        *_INPUTS,
        *_conformer("encoder", "encoder"),
        ("decoder.estimator.time_mlp.linear_1", "estimator.time_embedding.expand"),
        ("decoder.estimator.time_mlp.linear_2", "estimator.time_embedding.project"),
        *_unet_level("decoder.estimator.mid_blocks.{n}", "estimator.mid.{n}", norm),
        ("decoder.estimator.final_block.block.0", "estimator.final_conv"),
        (f"decoder.estimator.final_block.block.{norm}", "estimator.final_norm"),
        ("decoder.estimator.final_proj", "estimator.out"),
    )


_INPUTS = (("input_embedding", "token_embedding"), ("spk_embed_affine_layer", "speaker_projection"))
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
    *_unet_flow(2),
    ("encoder_proj", "encoder.mu_projection"),
    ("encoder.up_embed.out.0", "encoder.up_embed.linear"),
    ("encoder.up_embed.out.1", "encoder.up_embed.norm"),
    ("encoder.pre_lookahead_layer.conv1", "encoder.lookahead_conv"),
    ("encoder.pre_lookahead_layer.conv2", "encoder.history_conv"),
    ("encoder.up_layer.conv", "encoder.up_conv"),
    *_under("encoder.up_encoders.{n}", "encoder.up_blocks.{n}", _CONFORMER),
    *_unet_level("decoder.estimator.down_blocks.0", "estimator.down"),
    *_unet_level("decoder.estimator.up_blocks.0", "estimator.up"),
)
DIT_FLOW = (
    *_INPUTS,
    ("pre_lookahead_layer.conv1", "encoder.lookahead_conv"),
    ("pre_lookahead_layer.conv2", "encoder.history_conv"),
    ("decoder.estimator.time_embed.time_mlp.0", "estimator.time_embedding.expand"),
    ("decoder.estimator.time_embed.time_mlp.2", "estimator.time_embedding.project"),
    ("decoder.estimator.input_embed.proj", "estimator.input"),
    ("decoder.estimator.input_embed.conv_pos_embed.conv1.0", "estimator.position_conv.convs.0"),
    ("decoder.estimator.input_embed.conv_pos_embed.conv2.0", "estimator.position_conv.convs.1"),
    *_under(
        "decoder.estimator.transformer_blocks.{n}",
        "estimator.blocks.{n}",
        (
            (".attn_norm.linear", ".modulation"),
            (".attn.to_q", ".attention.query"),
            (".attn.to_k", ".attention.key"),
            (".attn.to_v", ".attention.value"),
            (".attn.to_out.0", ".attention.out"),
            (".ff.ff.0.0", ".feed_forward.expand"),
            (".ff.ff.2", ".feed_forward.contract"),
        ),
    ),
    ("decoder.estimator.norm_out.linear", "estimator.last_modulation"),
    ("decoder.estimator.proj_out", "estimator.out"),
)
CONFORMER_LM = (
    # In this checkpoint, the two norms of a block have other names than in `_CONFORMER`.
    ("llm.encoders.{n}.norm1", "backbone.blocks.{n}.attention_norm"),
    ("llm.encoders.{n}.norm2", "backbone.blocks.{n}.feed_forward_norm"),
    *_conformer("llm", "backbone"),
    *_conformer("text_encoder", "text_encoder"),
    ("text_encoder_affine_layer", "text_projection"),
    ("spk_embed_affine_layer", "speaker_projection"),
    ("llm_embedding", "control_embedding"),
    ("llm_decoder", "speech_head"),
)
WHOLE_FLOW = (
    *_unet_flow(1),
    ("encoder_proj", "mu_projection"),
    *((f"length_regulator.model.{3 * i}", f"regulator.convs.{i}") for i in range(4)),
    *((f"length_regulator.model.{3 * i + 1}", f"regulator.norms.{i}") for i in range(4)),
    ("length_regulator.model.12", "regulator.out"),
    *_unet_level("decoder.estimator.down_blocks.0", "estimator.downs.0", 1, ".conv"),
    *_unet_level("decoder.estimator.down_blocks.1", "estimator.downs.1", 1),
    *_unet_level("decoder.estimator.up_blocks.0", "estimator.ups.0", 1, ".conv"),
    *_unet_level("decoder.estimator.up_blocks.1", "estimator.ups.1", 1),
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
    """The name table of a part. rows: pairs (official, ours); unused: official keys that are read and ignored."""

    rows: Rows
    unused: frozenset[str] = frozenset()

    def to_ours(self, official: str) -> str:
        return _translate(official, self.rows)

    def to_official(self, ours: str) -> str:
        return _translate(ours, tuple((own, theirs) for theirs, own in self.rows))


def _translate(name: str, rows: Rows) -> str:
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
DIT_FLOW_NAMES = NameTable(DIT_FLOW, unused=frozenset({"decoder.estimator.rotary_embed.inv_freq"}))
CONFORMER_LM_NAMES = NameTable(CONFORMER_LM)
WHOLE_FLOW_NAMES = NameTable(WHOLE_FLOW)
VOCODER_NAMES = NameTable(VOCODER)
