import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.engine.vocoder_stage.stage import SpeedTail, resize, resized_frames


def ramp(frames):
    return torch.arange(frames, dtype=torch.float32)[:, None].expand(-1, 3)


def in_pieces(mel, sizes, speed):
    tail, parts = SpeedTail(speed), []
    pieces = mel.split(sizes)
    for place, piece in enumerate(pieces):
        final = place == len(pieces) - 1
        foretold = tail.count(len(piece), final)
        part, tail = tail.push(piece, final)
        assert len(part) == foretold
        parts.append(part)
    return torch.cat(parts)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.floats(0.5, 2.0))
@settings(deadline=None)
def test_pieces_equal_whole(sizes, speed):
    mel = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(0))
    joined, whole = in_pieces(mel, sizes, speed), in_pieces(mel, [len(mel)], speed)
    # A piece that ends between two frames may already hold the one that the whole rounds away.
    assert 0 <= len(joined) - len(whole) <= 1
    torch.testing.assert_close(joined[: len(whole)], whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.3, 2.0])
def test_stream_follows_the_whole(speed):
    whole, streamed = resize(ramp(100), speed), in_pieces(ramp(100), [100], speed)
    assert abs(len(whole) - len(streamed)) <= 1
    count = min(len(whole), len(streamed))
    # The whole spreads its rounded number of frames over all of the input, so it may drift by up to one output frame.
    torch.testing.assert_close(streamed[:count], whole[:count], atol=speed, rtol=0)


def test_a_piece_leaves_the_tail_before_it_as_it_was():
    _, tail = SpeedTail(1.3).push(ramp(20), final=False)
    first, _ = tail.push(ramp(7), final=False)
    again, _ = tail.push(ramp(7), final=False)
    assert torch.equal(first, again)


def test_speed_one_changes_nothing():
    mel = ramp(5)
    assert resize(mel, 1.0) is mel


@pytest.mark.parametrize(
    ("frames", "speed", "out"), [(80, 0.8, 100), (80, 1.3, 61), (1, 2.0, 1), (0, 1.3, 0), (7, 1, 7)]
)
def test_length(frames, speed, out):
    assert len(resize(ramp(frames), speed)) == resized_frames(frames, speed) == out
