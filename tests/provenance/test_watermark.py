from __future__ import annotations

import numpy as np
import pytest

from tests.provenance.conftest import RATE
from vivavoce.engine.watermark import DEPTH_DB, Samples, pattern
from vivavoce.errors import InvalidRequest
from vivavoce_provenance import WatermarkStream


def whole(samples: Samples, rate: int) -> Samples:
    stream = WatermarkStream(rate)
    return np.concatenate([stream.mark(samples), stream.finish()])


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000])
def test_pieces_equal_the_whole(speech: Samples, rate: int) -> None:
    samples = speech[: rate * 2]
    expected = whole(samples, rate)
    assert len(expected) == len(samples)
    assert np.isfinite(expected).all()
    chance = np.random.default_rng(rate)
    for longest in (1, 300, 5_000):
        cuts = np.cumsum(chance.integers(0, longest + 1, 2_000 if longest == 1 else 50))
        stream = WatermarkStream(rate)
        pieces = [stream.mark(piece) for piece in np.split(samples, cuts[cuts < len(samples)])]
        np.testing.assert_allclose(np.concatenate([*pieces, stream.finish()]), expected, atol=1e-6)


@pytest.mark.parametrize("length", [0, 1, 239, 240, 241, 480, 1_000])
def test_short_streams_keep_their_length(speech: Samples, length: int) -> None:
    assert len(whole(speech[:length], RATE)) == length


def test_it_is_late_by_less_than_20_ms(speech: Samples) -> None:
    stream, given, had = WatermarkStream(RATE), 0, 0
    for piece in np.split(speech[:7_000], range(7, 7_000, 7)):
        given += len(piece)
        had += len(stream.mark(piece))
        assert given - had < 0.02 * RATE


def test_streams_do_not_touch_each_other(speech: Samples) -> None:
    one, other = WatermarkStream(RATE), WatermarkStream(RATE)
    pieces = []
    for piece in np.split(speech, 10):
        pieces.append(one.mark(piece))
        other.mark(-piece[::2])
    np.testing.assert_array_equal(np.concatenate([*pieces, one.finish()]), np.concatenate(_in_tenths(speech)))


def _in_tenths(speech: Samples) -> list[Samples]:
    stream = WatermarkStream(RATE)
    return [*map(stream.mark, np.split(speech, 10)), stream.finish()]


def test_silence_stays_silence() -> None:
    assert not whole(np.zeros(RATE, np.float32), RATE).any()


def test_the_change_is_small_and_lies_in_the_bands(speech: Samples, speech_with_mark: Samples) -> None:
    change = speech_with_mark - speech
    assert 15 < 10 * np.log10(np.square(speech).sum() / np.square(change).sum()) < 25
    assert np.abs(speech_with_mark).max() < 10 ** (DEPTH_DB / 20) * np.abs(speech).max()
    powers = np.square(np.abs(np.fft.rfft(change)))
    hertz = np.fft.rfftfreq(len(change), 1 / RATE)
    assert powers[(hertz < 200) | (hertz > 3_500)].sum() < 0.02 * powers.sum()


def test_each_band_and_each_moment_keeps_its_loudness() -> None:
    signs = pattern()
    assert not signs.sum(axis=0).any()
    assert not signs.sum(axis=1).any()
    assert (pattern(b"another") != signs).mean() == pytest.approx(0.5, abs=0.1)


def test_a_rate_below_a_telephones_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="sample_rate: 4000 Hz is below 8000"):
        WatermarkStream(4_000)
