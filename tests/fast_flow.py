"""What tests of the flow's fast path need to be quick in Triton's interpreter."""

import math
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from vivavoce.checkpoint.config import DiTConfig
from vivavoce.models.build import Models
from vivavoce.models.flow import packed_dit, packed_encoder, packed_unet
from vivavoce.models.flow.model import Flow
from vivavoce.models.flow.packed_encoder import EncoderCuts
from vivavoce.models.flow.packed_unet import Cuts
from vivavoce_kernels import flow_attention
from vivavoce_kernels.encoder_attention import RelativeTile
from vivavoce_kernels.flow_attention import AttentionTile
from vivavoce_kernels.flow_products import ConvTile, ProductTile

COARSE_ENCODER = EncoderCuts(RelativeTile(64, 4, 3), 256, ProductTile(256, 64, 64, 4, 3))
COARSE = Cuts(AttentionTile(64, 4, 3), ConvTile(256, 64, 4, 3), ProductTile(256, 64, 64, 4, 3))
"""Few programs; on a CPU each costs much and all cost one after the other."""


def with_small_flow(models: Models, num_steps: int = 2) -> Models:
    """The models with a flow of few steps, three levels or one block, and random weights."""
    torch.manual_seed(0)
    given = models.config.flow
    if isinstance(given.estimator, DiTConfig):
        estimator, encoder = replace(given.estimator, size=16, num_blocks=1, num_heads=2, head_dim=16), given.encoder
    else:
        estimator = replace(given.estimator, channels=16, num_blocks=1, num_mid_blocks=1, num_heads=1, head_dim=16)
        encoder = replace(given.encoder, num_blocks=1, num_up_blocks=1)
    config = replace(given, num_steps=num_steps, estimator=estimator, encoder=encoder)
    flow = Flow(config).eval().requires_grad_(False)
    return replace(models, config=replace(models.config, flow=config), flow=flow)


def _values(handle):
    """What a tile of an interpreter's program holds; it keeps bfloat16 as the bits."""
    if handle.dtype.scalar == tl.bfloat16:
        return interpreter._convert_float(handle.data, tl.bfloat16, tl.float32, None).view(np.float32)
    return handle.data if handle.dtype.scalar == tl.float64 else handle.data.astype(np.float32)


def _patched_dot(patch, multiply):
    def create_dot(builder, a, b, d, input_precision, max_num_imprecise_acc):
        return interpreter.TensorHandle(multiply(_values(a), _values(b)) + d.data, d.dtype.scalar)

    patch.setattr(type(interpreter.interpreter_builder), "create_dot", create_dot)


def _language_patched_once(patch):
    """A kernel's functions find the language as its launch has left it; else each call searches all of it again."""
    given = interpreter._patch_lang

    def patch_lang(fn):
        seen = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if any(tl.core.is_builtin(member) for lang in seen for member in (lang.load, lang.tensor.__add__)):
            return given(fn)
        return None

    patch.setattr(interpreter, "_patch_lang", patch_lang)


def _types_made_once(patch):
    """Types and shapes, of which a kernel has few, are not made and written out anew for each value."""
    dtypes, shapes, blocks = {}, {}, {}
    given_dtype, given_block = interpreter._get_np_dtype, tl.block_type.__init__
    given_broadcast = interpreter.TritonSemantic.broadcast_impl_value

    def np_dtype(kind):
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = given_dtype(kind)
        return dtypes[name]

    def tensor(self, handle, kind):
        size = tuple(kind.shape) if kind.is_block() else ()
        if size not in shapes:
            shapes[size] = tl.constexpr(math.prod(size)), tl.tuple([tl.constexpr(one) for one in size])
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.numel, self.shape = shapes[size]

    def block(self, element_ty, shape):
        key = element_ty.name, tuple(getattr(one, "value", one) for one in shape)
        if key not in blocks:
            given_block(self, element_ty, shape)
            blocks[key] = dict(self.__dict__)
        self.__dict__.update(blocks[key], element_ty=element_ty)

    def broadcast(self, one, other):
        if one.type.is_block() and other.type.is_block() and one.type.shape.values == other.type.shape.values:
            return one, other
        return given_broadcast(self, one, other)

    def patch_attr(owner, name, member, builder, scope):
        def interpreted(*args, _semantic=None, **named):
            return member(*args, _semantic=interpreter.interpreter_semantic, **named)

        scope.set_attr(owner, name, interpreted)

    patch.setattr(interpreter, "_get_np_dtype", np_dtype)
    patch.setattr(interpreter, "_patch_attr", patch_attr)
    patch.setattr(interpreter, "_validate_np_data_size", lambda data, dtype: True)
    patch.setattr(interpreter.TritonSemantic, "broadcast_impl_value", broadcast)
    patch.setattr(tl.tensor, "__init__", tensor)
    patch.setattr(tl.block_type, "__init__", block)


@contextmanager
def quick_interpreter():
    """Without the interpreter's check of every address for overflow, half of its time; with products of bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        builder = interpreter.interpreter_builder
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        _patched_dot(patch, np.matmul)
        _language_patched_once(patch)
        _types_made_once(patch)
        yield


@contextmanager
def coarse_cuts():
    """The fewest programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_unet, "cuts_of", lambda frames, *, invariant: COARSE)
        for estimator in (packed_unet, packed_dit):
            patch.setattr(estimator, "NORM_ROWS", 256)
        for encoder in (packed_encoder, packed_dit):
            patch.setattr(encoder, "encoder_cuts", lambda tokens, *, invariant: COARSE_ENCODER)
        patch.setattr(flow_attention, "_FRAMES", 128)
        yield


@contextmanager
def products_in_order():
    """Products whose sums are taken in one order for every row, as the GPU's are; a CPU's library's are not."""

    with pytest.MonkeyPatch.context() as patch:
        _patched_dot(patch, lambda a, b: np.einsum("ik,kj->ij", a, b))
        yield
