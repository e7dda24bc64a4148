from __future__ import annotations

import io
import os
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vivavoce.errors import InvalidRequest
from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.audio.wav import wav_header, write_wav


@given(arrays.arrays(np.float32, st.integers(0, 100), elements=st.floats(-2, 2, width=32)), st.integers(8_000, 192_000))
def test_round_trip(samples, sample_rate):
    buffer = io.BytesIO()
    write_wav(buffer, samples, sample_rate)
    read, read_rate = soundfile.read(io.BytesIO(buffer.getvalue()), dtype="int16")
    assert read_rate == sample_rate
    np.testing.assert_array_equal(read, to_int16(samples))


def test_path_is_replaced_and_nothing_else_is_left(tmp_path, tone):
    path = tmp_path / "speech.wav"
    path.write_text("old")
    write_wav(path, tone(440, 24_000), 24_000)
    assert soundfile.info(path).frames == 24_000
    assert os.listdir(tmp_path) == ["speech.wav"]


def test_new_file_has_the_usual_permissions(tmp_path, tone):
    (tmp_path / "plain").touch()
    write_wav(str(tmp_path / "speech.wav"), tone(440, 24_000), 24_000)
    assert (tmp_path / "speech.wav").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_failed_write_leaves_the_old_file(tmp_path, tone, monkeypatch):
    path = tmp_path / "speech.wav"
    path.write_text("old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(InvalidRequest, match=r"output: .*No space left on device.*; choose"):
        write_wav(path, tone(440, 24_000), 24_000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["speech.wav"]


def test_link_stays_a_link(tmp_path, tone):
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    write_wav(tmp_path / "link.wav", tone(440, 24_000), 24_000)
    assert (tmp_path / "link.wav").is_symlink()
    assert soundfile.info(tmp_path / "real.wav").frames == 24_000


def test_device_is_written_not_replaced(tone):
    write_wav(os.devnull, tone(440, 24_000), 24_000)
    assert not os.path.isfile(os.devnull)


def test_missing_folder_and_folder_as_file(tmp_path, tone):
    with pytest.raises(InvalidRequest, match=r"output: folder .*absent' does not exist; create"):
        write_wav(tmp_path / "absent" / "speech.wav", tone(440, 24_000), 24_000)
    with pytest.raises(InvalidRequest, match=r"output: .* is a folder; add"):
        write_wav(tmp_path, tone(440, 24_000), 24_000)


def test_name_too_long(tmp_path, tone):
    with pytest.raises(InvalidRequest, match=r"output: .*; choose"):
        write_wav(tmp_path / ("x" * 300), tone(440, 24_000), 24_000)


def test_samples_must_be_one_row():
    with pytest.raises(ValueError, match="not \\[n\\]"):
        write_wav(io.BytesIO(), np.zeros((2, 10), np.float32), 24_000)


def test_header_of_unknown_length():
    header = wav_header(24_000, None)
    assert len(header) == 44
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    integers = np.arange(1000, dtype="<i2")
    read, _ = soundfile.read(io.BytesIO(header + integers.tobytes()), dtype="int16")
    np.testing.assert_array_equal(read, integers)


def test_header_sizes():
    header = wav_header(22_050, 100)
    assert struct.unpack("<I", header[4:8]) == (236,)
    assert struct.unpack("<I", header[40:44]) == (200,)
    assert struct.unpack("<I", header[28:32]) == (44_100,)
    assert wav_header(24_000, 1 << 40) == wav_header(24_000, None)
