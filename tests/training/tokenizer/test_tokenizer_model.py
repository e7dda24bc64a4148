from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.tokenizer.model import NUM_CODES, TokenEncoder, TokenizerSizes, to_indices

TINY = TokenizerSizes(width=16, heads=2, blocks=2, inner=16, kernel=3, span=3)


@pytest.fixture(scope="module")
def encoder() -> TokenEncoder:
    torch.manual_seed(0)
    return TokenEncoder(TINY).eval()


def test_what_is_exported_has_at_most_1_2_million_parameters() -> None:
    assert sum(parameter.numel() for parameter in TokenEncoder(TokenizerSizes()).parameters()) <= 1_200_000


@pytest.mark.parametrize("frames", [1, 3, 4, 5, 40, 41])
def test_one_token_for_four_frames_begun(encoder: TokenEncoder, frames: int) -> None:
    digits = encoder(torch.randn(2, 128, frames))
    assert digits.shape == (2, -(-frames // 4), 8)
    assert digits.abs().max() <= 1


def test_the_distant_does_not_count(encoder: TokenEncoder) -> None:
    features = torch.randn(1, 128, 400)
    changed = features.clone()
    changed[..., 320:] = 1.0
    torch.testing.assert_close(encoder(features)[:, :60], encoder(changed)[:, :60])
    assert not torch.allclose(encoder(features)[:, 79], encoder(changed)[:, 79])


@given(st.integers(0, NUM_CODES - 1))
def test_the_first_digit_counts_least(index: int) -> None:
    digits = torch.tensor([index // 3**place % 3 - 1.0 for place in range(8)])
    assert to_indices(0.9 * digits).item() == index
