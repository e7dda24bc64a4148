"""Tensors for tests of the flow's kernels, and how near a result must come."""

import pytest
import torch

NAN = float("nan")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Largest difference for values of about 1; a 16-bit result is rounded once or twice."""
DTYPES = pytest.mark.parametrize("dtype", list(BOUNDS))


def in_pairs(names, *some):
    """Some cases for the first dtype, others for the next one, and so on: each pair of values, not each triple."""
    cases = [(dtype, *values) for place, dtype in enumerate(BOUNDS) for values in some[place % len(some)]]
    return pytest.mark.parametrize(("dtype", *names), cases)


def draw(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def close(made, expected, dtype, factor=1.0):
    size = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(made.double(), expected.double(), atol=BOUNDS[dtype] * factor * size, rtol=0)


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)
