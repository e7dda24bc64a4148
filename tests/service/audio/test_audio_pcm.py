from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vivavoce.service.audio.pcm import to_int16

FLOATS = arrays.arrays(np.float32, st.integers(0, 50), elements=st.floats(-4, 4, width=32))


@given(FLOATS)
def test_within_half_a_step_or_saturated(samples):
    integers = to_int16(samples)
    assert integers.dtype == np.int16
    assert np.all(np.abs(integers.astype(np.int64)) <= 32767)
    expected = np.clip(samples.astype(np.float64) * 32768, -32767, 32767)
    assert np.all(np.abs(integers - expected) <= 0.5)


@given(FLOATS)
def test_order_and_sign_are_kept(samples):
    np.testing.assert_array_equal(to_int16(-samples), -to_int16(samples))
    assert np.all(np.diff(to_int16(np.sort(samples)).astype(np.int64)) >= 0)


def test_all_16_bit_samples_come_back():
    integers = np.arange(-32767, 32768, dtype=np.int16)
    np.testing.assert_array_equal(to_int16(integers / np.float32(32768)), integers)


def test_saturation():
    samples = np.array([1.0, -1.0, 1.5, -9.0, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(to_int16(samples), [32767, -32767] * 3)


def test_nan_is_an_error():
    with pytest.raises(ValueError, match="2 of 4 samples are NaN"):
        to_int16(np.array([0, np.nan, 0.5, np.nan], np.float32))
