import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.engine.speed import SpeedStream, resize


def ramp(frames):
    return torch.arange(frames, dtype=torch.float32)[:, None].expand(-1, 3)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.floats(0.5, 2.0))
@settings(deadline=None)
def test_pieces_equal_whole(sizes, speed):
    mel = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(0))
    stream, whole = SpeedStream(speed), SpeedStream(speed).push(mel, final=True)
    pieces = mel.split(sizes)
    parts = [stream.push(piece, final=place == len(pieces) - 1) for place, piece in enumerate(pieces)]
    joined = torch.cat(parts)
    # A piece that ends between two frames may already hold the one that the whole rounds away.
    assert 0 <= len(joined) - len(whole) <= 1
    torch.testing.assert_close(joined[: len(whole)], whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.3, 2.0])
def test_stream_follows_the_whole(speed):
    whole, streamed = resize(ramp(100), speed), SpeedStream(speed).push(ramp(100), final=True)
    assert abs(len(whole) - len(streamed)) <= 1
    count = min(len(whole), len(streamed))
    # The whole spreads its rounded number of frames over all of the input, so it may drift by up to one output frame.
    torch.testing.assert_close(streamed[:count], whole[:count], atol=speed, rtol=0)


def test_speed_one_changes_nothing():
    mel = ramp(5)
    assert resize(mel, 1.0) is mel
    assert SpeedStream(1.0).push(mel, final=False) is mel


def test_length():
    assert len(resize(ramp(80), 0.8)) == 100
    assert len(resize(ramp(80), 1.3)) == 61
