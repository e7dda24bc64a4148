from __future__ import annotations

import io
import json
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from vivavoce.errors import InvalidRequest, VoiceStoreError
from vivavoce.service.voices.voice import Voice
from vivavoce.service.voices.voice_file import MAX_VOICE_BYTES, decode_voice, encode_voice, read_metadata

LABEL = "voice: 'anna'"

MISFITS = [
    ({"embedding": torch.zeros(4097)}, "embedding of size 4097, more than 4096"),
    ({"embedding": torch.zeros(0)}, "an empty embedding"),
    ({"embedding": torch.zeros(1, 192)}, "embedding of torch.float32 1 × 192, not torch.float32 in 1 dimensions"),
    ({"embedding": torch.zeros(192, dtype=torch.float64)}, "embedding of torch.float64"),
    ({"embedding": torch.tensor(1.0)}, "embedding of torch.float32 a scalar"),
    ({"embedding": torch.full((192,), float("nan"))}, "NaN or infinite"),
    ({"speech_tokens": torch.zeros(2001, dtype=torch.int32)}, "speech tokens of size 2001, more than 2000"),
    ({"speech_tokens": torch.zeros(25, dtype=torch.int64)}, "speech tokens of torch.int64"),
    ({"speech_tokens": torch.full((25,), -1, dtype=torch.int32)}, "token ids outside"),
    ({"speech_tokens": torch.zeros(0, dtype=torch.int32)}, "0 speech tokens, but 50 mel frames"),
    ({"mel": torch.zeros(4001, 80)}, "mel of size 4001 × 80, more than 4000 × 512"),
    ({"mel": torch.zeros(50, 513)}, "mel of size 50 × 513"),
    ({"mel": torch.zeros(0, 80)}, "25 speech tokens, but 0 mel frames"),
    ({"mel": torch.full((50, 80), float("inf"))}, "NaN or infinite"),
]
UNREADABLE = [
    ({"prompt_text": (-1,)}, "token ids outside"),
    ({"prompt_text": (2**31,)}, "token ids outside"),
    ({"prompt_text": (0,) * 4001}, "4001 text ids in its prompt, more than 4000"),
    ({"transcript": "x" * 20_001}, "a transcript of 20001 characters, more than 20000"),
    ({"licence": "\ud800"}, "a licence with half of a surrogate pair"),
]


def file_of(header: dict | bytes, body: bytes = b"") -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data + body


def with_tensors(data: bytes, **changes: torch.Tensor) -> bytes:
    """The same file with other tensors; None leaves one out."""
    tensors = {key: value for key, value in {**load(data), **changes}.items() if value is not None}
    return save(tensors, metadata=read_metadata(io.BytesIO(data)))


def with_metadata(data: bytes, **changes: str) -> bytes:
    return save(load(data), metadata={**read_metadata(io.BytesIO(data)), **changes})


def test_round_trip_is_exact(full_voice, same):
    voice = full_voice()
    same(decode_voice(encode_voice(voice), LABEL), voice)


def test_round_trip_of_an_embedding_alone(plain_voice, same):
    voice = plain_voice(fingerprint="")
    same(decode_voice(encode_voice(voice), LABEL), voice)


def test_special_numbers_keep_their_bits(full_voice, same):
    tiny = torch.tensor([-0.0, 1e-45, 3.4028235e38, -1e-38] * 1000)
    voice = full_voice(mel=tiny.reshape(50, 80), embedding=tiny[:192])
    same(decode_voice(encode_voice(voice), LABEL), voice)


def test_views_and_gradients_are_stored_as_numbers(full_voice, same):
    mel = torch.randn(80, 60).T[5:55].requires_grad_()
    voice = full_voice(mel=mel)
    same(
        decode_voice(encode_voice(voice), LABEL),
        full_voice(embedding=voice.embedding, speech_tokens=voice.speech_tokens, mel=mel.detach()),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strings=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), min_size=5, max_size=5),
    prompt=st.lists(st.integers(0, 2**31 - 1), max_size=20),
    tokens=st.integers(0, 2000),
)
def test_round_trip_of_any_voice(same, strings, prompt, tokens):
    name, transcript, fingerprint, description, licence = strings
    voice = Voice(
        embedding=torch.randn(16),
        fingerprint=fingerprint,
        name=name,
        transcript=transcript,
        prompt_text=tuple(prompt),
        speech_tokens=torch.arange(tokens, dtype=torch.int32),
        mel=torch.randn(2 * tokens, 3),
        description=description,
        licence=licence,
    )
    same(decode_voice(encode_voice(voice), LABEL), voice)


def test_loaded_tensors_belong_to_the_voice(full_voice):
    voice = decode_voice(encode_voice(full_voice()), LABEL)
    before = voice.embedding.clone()
    voice.mel.zero_()
    assert torch.equal(voice.embedding, before)


@pytest.mark.parametrize(("changes", "problem"), MISFITS + UNREADABLE)
def test_misfits_are_not_written(full_voice, changes, problem):
    with pytest.raises(InvalidRequest) as caught:
        encode_voice(full_voice(**changes))
    assert problem in str(caught.value)
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith("; extract it again from its recording")


@pytest.mark.parametrize(("changes", "problem"), MISFITS)
def test_misfits_are_not_read(full_voice, changes, problem):
    data = with_tensors(encode_voice(full_voice()), **changes)
    with pytest.raises(VoiceStoreError) as caught:
        decode_voice(data, LABEL)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(LABEL)


def test_too_long_strings_are_not_read(full_voice):
    data = with_metadata(encode_voice(full_voice()), transcript="x" * 20_001)
    with pytest.raises(VoiceStoreError, match=r"transcript of 20001 characters"):
        decode_voice(data, LABEL)


@pytest.mark.parametrize(
    "changes",
    [
        {"mel": None},
        {"extra": torch.zeros(1)},
        {"prompt_text": torch.zeros(3)},
        {"prompt_text": torch.zeros(1, 3, dtype=torch.int64)},
        {"prompt_text": torch.tensor(3)},
    ],
)
def test_other_tensors_are_refused(full_voice, changes):
    data = with_tensors(encode_voice(full_voice()), **changes)
    with pytest.raises(VoiceStoreError, match=r"does not hold the tensors of a voice"):
        decode_voice(data, LABEL)


def test_a_newer_format_is_refused(full_voice):
    data = with_metadata(encode_voice(full_voice()), version="2\n")
    with pytest.raises(
        VoiceStoreError, match=r"^voice: 'anna' has format version '2\\n', this program reads 1; update"
    ):
        decode_voice(data, LABEL)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 100, 600, -1, -5000])
def test_truncated_files_are_refused(full_voice, cut):
    with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' is damaged"):
        decode_voice(encode_voice(full_voice())[:cut], LABEL)


def test_bytes_beyond_the_end_are_refused(full_voice):
    with pytest.raises(VoiceStoreError, match=r"is damaged"):
        decode_voice(encode_voice(full_voice()) + b"x", LABEL)


def test_larger_files_than_any_voice_are_refused(full_voice):
    with pytest.raises(VoiceStoreError, match=r"larger than 16 MiB"):
        decode_voice(encode_voice(full_voice()) + bytes(MAX_VOICE_BYTES), LABEL)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF....WAVE",
        b"\xff" * 100,
        pickle.dumps({"embedding": [1.0]}),
        save({"embedding": torch.zeros(192)}),
        save({"embedding": torch.zeros(192)}, metadata={"format": "pt"}),
        file_of(b"[" * 100_000),
        file_of(b"[1]"),
        file_of(b"\xff\xfe"),
        file_of({"__metadata__": "text"}),
        file_of({"__metadata__": {"format": 3}}),
    ],
)
def test_foreign_files_are_refused(data):
    assert read_metadata(io.BytesIO(data)) is None
    with pytest.raises(VoiceStoreError, match=r"is damaged, or no voice of vivavoce"):
        decode_voice(data, LABEL)


@pytest.mark.parametrize(
    "embedding",
    [
        {"dtype": "F32", "shape": [0, 2**63 + 5], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
        {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]},
        {"dtype": "nonsense", "shape": [1], "data_offsets": [0, 1]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 1]},
        {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]},
    ],
)
def test_absurd_headers_are_refused(full_voice, embedding):
    metadata = read_metadata(io.BytesIO(encode_voice(full_voice())))
    with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' (is damaged|does not hold)"):
        decode_voice(file_of({"__metadata__": metadata, "embedding": embedding}, b"x"), LABEL)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_wrong_byte_is_a_voice_or_one_line(full_voice, place, byte):
    torch.manual_seed(0)
    data = bytearray(encode_voice(replace(full_voice(), mel=torch.randn(50, 2))))
    data[int(place * len(data))] = byte
    try:
        outcome = decode_voice(bytes(data), LABEL)
    except VoiceStoreError as error:
        outcome = str(error)
    assert isinstance(outcome, Voice) or outcome.isprintable()


def test_a_huge_promised_header_is_not_read():
    class Counting(io.BytesIO):
        asked = 0

        def read(self, size=-1):
            self.asked += size
            return super().read(size)

    file = Counting((2**40).to_bytes(8, "little") + bytes(1000))
    assert read_metadata(file) is None
    assert file.asked == 8
