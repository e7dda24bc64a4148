"""Triton's interpreter with e4m3 as a GPU has it: its own conversions lose the carry of a mantissa that rounds up."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.fast_flow import quick_interpreter


def _narrow(values):
    """float32 → the bits of e4m3, to the nearest, ties to even."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def _wide(bits):
    return torch.from_numpy(np.ascontiguousarray(bits)).view(torch.float8_e4m3fn).float().numpy()


@contextmanager
def eight_bit_interpreter():
    """Quick, too."""
    with quick_interpreter(), pytest.MonkeyPatch.context() as patch:
        builder = type(interpreter.interpreter_builder)
        dot, convert = builder.create_dot, builder.create_fp_to_fp

        def widened(handle):
            if handle.dtype.scalar != tl.float8e4nv:
                return handle
            return interpreter.TensorHandle(_wide(handle.data), tl.float32)

        def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
            return dot(self, widened(a), widened(b), d, input_precision, max_num_imprecise_acc)

        def create_fp_to_fp(self, src, dst_type, rounding_mode):
            if dst_type.scalar != tl.float8e4nv:
                return convert(self, src, dst_type, rounding_mode)
            return interpreter.TensorHandle(_narrow(src.data), tl.float8e4nv)

        patch.setattr(builder, "create_dot", create_dot)
        patch.setattr(builder, "create_fp_to_fp", create_fp_to_fp)
        yield
