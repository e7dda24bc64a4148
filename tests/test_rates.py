import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.rates import Rates

COSYVOICE_1 = Rates(22_050, 256, 50)


def test_frames_of_a_rate_without_whole_frames_are_the_official_ones():
    assert all(COSYVOICE_1.frames_of(n) == int(n / 50 * 22050 / 256) for n in range(8_960))
    assert COSYVOICE_1.frames_per_token == 0
    assert COSYVOICE_1.tokens_in(15_000) < 8_960  # beyond, the official division would round


@given(st.integers(0, 20_000))
def test_whole_frames_stay_whole(tokens):
    rates = Rates(24_000, 480, 25)
    assert rates.frames_of(tokens) == tokens * rates.frames_per_token == 2 * tokens


@pytest.mark.parametrize("rates", [COSYVOICE_1, Rates(24_000, 480, 25)])
@given(frames=st.integers(0, 20_000))
def test_tokens_that_fit_into_frames(rates, frames):
    assert rates.frames_of(rates.tokens_in(frames)) <= frames < rates.frames_of(rates.tokens_in(frames) + 1)
