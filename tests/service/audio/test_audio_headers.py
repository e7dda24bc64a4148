from __future__ import annotations

import numpy as np
import pytest

from vivavoce.service.audio.headers import mp3_has_index, share_present
from vivavoce.service.audio.wav import wav_header


@pytest.mark.parametrize("container", ["WAV", "AIFF"])
def test_share_of_samples_that_are_there(encode, container):
    content = encode(np.zeros(10_000, np.int16), 24_000, container)
    assert share_present(content) == 1.0
    assert share_present(content[:-10_000]) == pytest.approx(0.5, abs=0.001)


def test_chunks_before_the_samples_are_skipped_with_their_padding():
    wav = wav_header(24_000, 100) + bytes(200)
    odd_chunk = b"LIST" + (3).to_bytes(4, "little") + b"abc\0"
    content = wav[:36] + odd_chunk + wav[36:]
    assert share_present(content) == 1.0
    assert share_present(content[:-100]) == 0.5


@pytest.mark.parametrize("content", [b"", b"RIFF", b"fLaC" + bytes(100), wav_header(24_000, None) + bytes(10)])
def test_nothing_is_missing_where_nothing_is_promised(content):
    assert share_present(content) == 1.0


def test_index_of_an_mp3_is_found_behind_its_tags(encode):
    content = encode(np.zeros(24_000, np.float32), 24_000, "MP3")
    tags = b"ID3\x04\0\0" + bytes([0, 0, 2, 5]) + bytes(2 * 128 + 5)
    assert mp3_has_index(content)
    assert mp3_has_index(tags + content)
    assert not mp3_has_index(content.replace(b"Xing", b"????").replace(b"Info", b"????"))
