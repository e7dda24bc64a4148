"""Voice files and spk2info.pt."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import astuple, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from vivavoce.errors import InvalidRequest, VoiceStoreError
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.voice import (
    MAX_VOICE_BYTES,
    Voice,
    decode_voice,
    encode_voice,
    read_summary,
    voices_from_spk2info,
    voices_to_spk2info,
)

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
    ({"prompt_text": (-1,)}, "token ids outside"),
    ({"prompt_text": (2**31,)}, "token ids outside"),
    ({"prompt_text": (0,) * 4001}, "4001 text ids in its prompt, more than 4000"),
    ({"transcript": "x" * 20_001}, "a transcript of 20001 characters, more than 20000"),
    ({"licence": "\ud800"}, "a licence with half of a surrogate pair"),
    ({"recording": bytes(4 * 1024 * 1024 + 1)}, "a recording of 4194305 bytes, more than 4194304"),
    ({"others": (Voice(torch.zeros(4), "m"),) * 4}, "features for 5 models, more than 4"),
    ({"others": (Voice(torch.zeros(0), "m"),)}, "an empty embedding"),
]


def file_of(header: dict | bytes, body: bytes = b"") -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data + body


def metadata_of(data: bytes) -> dict[str, str]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]


def with_tensors(data: bytes, **changes: torch.Tensor) -> bytes:
    """The same file with other tensors; None leaves one out."""
    tensors = {key: value for key, value in {**load(data), **changes}.items() if value is not None}
    return save(tensors, metadata=metadata_of(data))


def test_views_and_gradients_are_stored_as_numbers(full_voice, same):
    mel = torch.randn(80, 60).T[5:55].requires_grad_()
    voice = full_voice(mel=mel)
    same(
        decode_voice(encode_voice(voice), LABEL),
        full_voice(embedding=voice.embedding, speech_tokens=voice.speech_tokens, mel=mel.detach()),
    )


def test_a_whole_voice_keeps_its_recording_and_the_features_of_a_few_models(full_voice, plain_voice, same):
    models = ["first", *(f"m{number}" for number in range(4))]
    whole = full_voice(fingerprint="first", recording=b"fLaC and so on")
    of_models = {"first": whole} | {model: full_voice("", fingerprint=model) for model in models[1:]}
    for model in models[1:]:
        whole = whole.including(of_models[model])
    found = decode_voice(encode_voice(whole), LABEL)
    assert found.recording == whole.recording
    assert [one.fingerprint for one in found.others] == ["m1", "m2", "m3"], "the oldest of the others makes room"
    for model in ("first", "m1", "m3"):
        own = found.of(model)
        told = {key: getattr(whole, key) for key in ("name", "transcript", "description", "licence", "consent")}
        same(own, replace(of_models[model], **told, recording=b"", others=()))
        assert (own.recording, own.others) == (b"", ())
    assert found.of("m0") is found.of("") is None
    assert read_summary(io.BytesIO(encode_voice(whole))) == read_summary(io.BytesIO(encode_voice(full_voice())))


def test_a_plain_voice_is_written_as_older_programs_read_it(full_voice):
    known = {"format", "version", "name", "transcript", "fingerprint", "description", "licence"}
    assert metadata_of(encode_voice(full_voice(consent=None))).keys() == known
    with_consent = metadata_of(encode_voice(full_voice()))
    assert with_consent.keys() == known | {"consent", "consent_by", "consent_at"}, "they look up those that they know"
    assert with_consent["version"] == "1"
    assert metadata_of(encode_voice(full_voice()))["version"] == "1"
    assert metadata_of(encode_voice(full_voice(recording=b"x")))["version"] == "2"


def test_a_consent_in_a_file(full_voice):
    voice = full_voice()
    data = encode_voice(voice)
    assert decode_voice(data, LABEL).consent == voice.consent
    told = read_summary(io.BytesIO(data))
    assert (told.consent, told.consent_by, told.consent_at) == (*astuple(voice.consent),)
    for change, found in (({"consent_at": ""}, ""), ({"consent": "x" * 2_001}, None), ({"consent": ""}, None)):
        metadata = {**metadata_of(data), **change}
        changed = save(load(data), metadata=metadata)
        if found is None:
            with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' is damaged \(consent: "):
                decode_voice(changed, LABEL)
        else:
            assert decode_voice(changed, LABEL).consent.at == found
    with pytest.raises(InvalidRequest, match="a consent with half of a surrogate pair"):
        encode_voice(full_voice(consent=Consent("\ud800")))
    with pytest.raises(InvalidRequest, match=r"^consent_by: 'y+.*has 201 characters, more than the limit of 200; "):
        Consent("Yes.", "y" * 201)


@pytest.mark.parametrize("name", ["other 1", "other 2", "else"])
def test_other_models_features_are_voices_of_the_plain_form_or_one_line(full_voice, name):
    whole = encode_voice(full_voice(recording=b"x").including(full_voice("", fingerprint="m")))
    plain = encode_voice(full_voice())
    for other in (b"", b"x", b"\xff" * 100, plain[:-1], pickle.dumps({}), whole):
        bytes_of = torch.frombuffer(bytearray(other or b"0"), dtype=torch.uint8)[: len(other)]
        with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' (is damaged|has format version '2')"):
            decode_voice(with_tensors(whole, **{name: bytes_of}), LABEL)
        with pytest.raises(VoiceStoreError, match="does not hold the tensors of a voice"):
            decode_voice(with_tensors(plain, **{name: bytes_of}), LABEL)


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


@pytest.mark.parametrize(("changes", "problem"), MISFITS)
def test_misfits_are_neither_written_nor_read(full_voice, changes, problem):
    with pytest.raises(InvalidRequest, match=r"; extract it again from its recording$") as caught:
        encode_voice(full_voice(**changes))
    assert problem in str(caught.value)
    assert str(caught.value).isprintable()
    if isinstance(next(iter(changes.values())), torch.Tensor):
        with pytest.raises(VoiceStoreError, match=f"^{LABEL}") as caught:
            decode_voice(with_tensors(encode_voice(full_voice()), **changes), LABEL)
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"mel": None},
        {"recording": torch.zeros(3)},
        {"recording": torch.zeros(3, dtype=torch.uint8)},
        {"extra": torch.zeros(1)},
        {"prompt_text": None},
        {"prompt_text": torch.zeros(3)},
        {"prompt_text": torch.zeros(1, 3, dtype=torch.int64)},
        {"prompt_text": torch.tensor(3)},
    ],
)
def test_other_tensors_are_refused(full_voice, changes):
    data = with_tensors(encode_voice(full_voice()), **changes)
    with pytest.raises(VoiceStoreError, match=r"does not hold the tensors of a voice"):
        decode_voice(data, LABEL)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        *((slice(cut), "is damaged") for cut in (0, 1, 7, 8, 9, 100, 600, -1, -5000)),
        (bytes(MAX_VOICE_BYTES), "is larger than 16 MiB"),
        ("2\n", r"has format version '2\\n', this program reads 1 and 2; update"),
    ],
)
def test_other_files_are_refused(full_voice, change, problem):
    data = encode_voice(full_voice())
    if isinstance(change, str):
        data = save(load(data), metadata={**metadata_of(data), "version": change})
    else:
        data = data[change] if isinstance(change, slice) else data + change
    with pytest.raises(VoiceStoreError, match=f"^{LABEL} {problem}"):
        decode_voice(data, LABEL)


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
    assert read_summary(io.BytesIO(data)) is None
    with pytest.raises(VoiceStoreError, match=r"is damaged, or not a voice of vivavoce"):
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
    metadata = metadata_of(encode_voice(full_voice()))
    with pytest.raises(VoiceStoreError, match=r"^voice: 'anna' (is damaged|does not hold)"):
        decode_voice(file_of({"__metadata__": metadata, "embedding": embedding}, b"x"), LABEL)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_wrong_byte_is_a_voice_or_one_line(full_voice, place, byte):
    torch.manual_seed(0)
    small = replace(full_voice(), mel=torch.randn(50, 2))
    data = bytearray(encode_voice(replace(small, recording=b"a recording").including(small)))
    data[int(place * len(data))] = byte
    try:
        outcome = decode_voice(bytes(data), LABEL)
    except VoiceStoreError as error:
        outcome = str(error)
    assert isinstance(outcome, Voice) or outcome.isprintable()


def test_the_official_layout_is_written(tmp_path, full_voice):
    path = tmp_path / "spk2info.pt"
    voice = full_voice()
    voices_to_spk2info([voice], path)
    speaker = torch.load(path, weights_only=True)["anna"]
    assert speaker["prompt_text"].tolist() == [list(voice.prompt_text)]
    for key in ("llm_prompt_speech_token", "flow_prompt_speech_token"):
        assert torch.equal(speaker[key], voice.speech_tokens[None])
        assert speaker[f"{key}_len"].tolist() == [25]
    assert torch.equal(speaker["prompt_speech_feat"], voice.mel[None])
    assert speaker["prompt_speech_feat_len"].tolist() == [50]
    for key in ("llm_embedding", "flow_embedding"):
        assert torch.equal(speaker[key], voice.embedding[None])


def test_a_built_in_speaker_has_an_embedding_only(tmp_path):
    path = tmp_path / "spk2info.pt"
    torch.save({"英文男": {"embedding": torch.ones(1, 192)}}, path)
    (voice,) = voices_from_spk2info(path, "model")
    assert (voice.name, voice.fingerprint, voice.has_prompt, voice.prompt_text) == ("英文男", "model", False, ())
    assert torch.equal(voice.embedding, torch.ones(192))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"embedding": torch.zeros(256)}, "an embedding of 256 and 80 mel bins; spk2info holds 192 and 80"),
        ({"mel": torch.zeros(50, 100)}, "an embedding of 192 and 100 mel bins"),
        ({"name": ""}, "voice name: '' is empty"),
        ({"name": "bare"}, "voice name: 'bare' occurs twice"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused(tmp_path, full_voice, plain_voice, changes, problem):
    path = tmp_path / "spk2info.pt"
    with pytest.raises(InvalidRequest) as caught:
        voices_to_spk2info([plain_voice("bare"), full_voice(**changes)], path)
    assert problem in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("place", ["missing/spk2info.pt", "."])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, plain_voice, place):
    with pytest.raises(InvalidRequest, match=r"^path: .* cannot be written .*; check the folder$"):
        voices_to_spk2info([plain_voice()], tmp_path / place)
