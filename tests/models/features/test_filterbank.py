from __future__ import annotations

import pytest
import torch

from vivavoce.models.features.filterbank import slaney_filterbank

SIZES = [(24_000, 1920, 80, 0.0, 8_000.0), (24_000, 1920, 80, 0.0, 12_000.0), (16_000, 400, 128, 0.0, 8_000.0)]


@pytest.mark.parametrize("size", SIZES)
def test_shape_and_support(size):
    sample_rate, n_fft, num_bins, fmin_hz, fmax_hz = size
    filters = slaney_filterbank(*size)
    assert filters.shape == (num_bins, n_fft // 2 + 1)
    assert filters.dtype == torch.float32
    assert filters.min() == 0
    frequencies = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1)
    used = frequencies[filters.sum(0) > 0]
    assert used.min() > fmin_hz
    assert used.max() < fmax_hz


def test_unit_area_where_frequencies_are_dense():
    filters = slaney_filterbank(24_000, 1 << 16, 40, 0.0, 8_000.0)
    areas = filters.double().sum(1) * (24_000 / (1 << 16))
    torch.testing.assert_close(areas, torch.ones_like(areas), rtol=1e-3, atol=0)


def test_centres_are_linear_below_1_khz_and_logarithmic_above():
    filters = slaney_filterbank(24_000, 1 << 16, 40, 0.0, 8_000.0)
    centres = filters.argmax(1).double() * (24_000 / (1 << 16))
    low, high = centres[centres < 900], centres[centres > 1_100]
    torch.testing.assert_close(low.diff(), low.diff()[:1].expand(len(low) - 1), rtol=5e-3, atol=0)
    ratios = high[1:] / high[:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios), rtol=1e-3, atol=0)
