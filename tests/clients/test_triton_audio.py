"""Recordings as Triton takes them, WAV files, and chunks that are joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vivavoce.clients.triton.audio import Audio, join, read_reference, write_wav
from vivavoce.errors import InvalidAudio, InvalidRequest

chunk_lists = st.lists(
    arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1, 1, width=32, allow_subnormal=False)),
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(chunk_lists)
def test_without_overlap_nothing_is_lost(chunks: list[np.ndarray]) -> None:
    joined, added = join(chunks, 0)
    np.testing.assert_array_equal(joined, np.concatenate([np.zeros(0, np.float32), *chunks]))
    assert added == tuple(map(len, chunks))


@settings(max_examples=50, deadline=None)
@given(chunk_lists, st.integers(0, 50))
def test_what_is_added_sums_up(chunks: list[np.ndarray], overlap: int) -> None:
    joined, added = join(chunks, overlap)
    assert len(joined) == sum(added)
    assert joined.dtype == np.float32
    assert not chunks or abs(joined).max() <= max(abs(chunk).max() for chunk in chunks) * (1 + 1e-6)


def test_repeated_samples_come_out_once() -> None:
    whole = np.sin(np.arange(200) / 7).astype(np.float32)
    joined, added = join([whole[:80], whole[60:140], whole[120:]], 20)
    np.testing.assert_allclose(joined, whole, atol=1e-6)
    assert added == (80, 60, 60)


def test_one_chunk_fades_into_the_other() -> None:
    joined, _ = join([np.ones(10, np.float32), np.zeros(10, np.float32)], 5)
    np.testing.assert_allclose(joined, [1] * 5 + [1, 0.75, 0.5, 0.25, 0] + [0] * 5)


def test_a_reference_is_mono_at_16_khz(tmp_path: Path) -> None:
    stereo = np.stack([np.full(4800, 0.5), np.full(4800, -0.1)], axis=1)
    soundfile.write(tmp_path / "a.wav", stereo, 48_000, subtype="FLOAT")
    samples = read_reference(tmp_path / "a.wav")
    assert (samples.dtype, samples.shape) == (np.float32, (1600,))
    np.testing.assert_allclose(samples[400:1200], 0.2, atol=1e-3)
    np.testing.assert_array_equal(read_reference((tmp_path / "a.wav").read_bytes()), samples)


def test_recordings_that_are_none(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    soundfile.write(tmp_path / "nan.wav", np.array([np.nan]), 16_000, subtype="FLOAT")
    for source, message in (
        (tmp_path / "none.wav", "cannot be read"),
        (tmp_path, "cannot be read"),
        (b"no audio", "8 bytes cannot be read"),
        (tmp_path / "empty.wav", "holds no samples"),
        (tmp_path / "nan.wav", "holds no samples, or some that are not finite"),
    ):
        with pytest.raises(InvalidAudio, match=message):
            read_reference(source)


def test_what_is_too_loud_is_clipped(tmp_path: Path) -> None:
    write_wav(tmp_path / "out.audio", Audio(np.array([0, 2, -2], np.float32), 22_050))
    samples, rate = soundfile.read(tmp_path / "out.audio", dtype="int16")
    assert (samples.tolist(), rate) == ([0, 32767, -32768], 22_050)
    with pytest.raises(InvalidRequest, match="cannot be written"):
        write_wav(tmp_path / "none" / "a.wav", Audio(np.zeros(1, np.float32), 24_000))
