from __future__ import annotations

import pytest
import torch

from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.service.voices.portable import voices_from_spk2info, voices_to_spk2info


def test_round_trip(tmp_path, full_voice, plain_voice, same):
    path = tmp_path / "spk2info.pt"
    voices = [full_voice("anna", transcript="", description="", licence=""), plain_voice("中文女")]
    voices_to_spk2info(voices, path)
    loaded = voices_from_spk2info(path, voices[0].fingerprint)
    assert [voice.name for voice in loaded] == ["anna", "中文女"]
    for one, other in zip(loaded, [voices[0], voices[1]], strict=True):
        same(one, other)


def test_a_second_round_trip_writes_the_same_tensors(tmp_path, full_voice, plain_voice):
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    voices_to_spk2info([full_voice(), plain_voice()], first)
    voices_to_spk2info(voices_from_spk2info(first, ""), second)
    one, other = torch.load(first, weights_only=True), torch.load(second, weights_only=True)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].keys() == other[name].keys()
        assert all(torch.equal(one[name][key], other[name][key]) for key in one[name])


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


def test_the_tokens_of_the_flow_are_taken(tmp_path, full_voice):
    path = tmp_path / "spk2info.pt"
    voices_to_spk2info([full_voice()], path)
    speakers = torch.load(path, weights_only=True)
    speakers["anna"]["llm_prompt_speech_token"] += 1
    torch.save(speakers, path)
    (voice,) = voices_from_spk2info(path, "")
    assert torch.equal(voice.speech_tokens, speakers["anna"]["flow_prompt_speech_token"][0])


def test_imported_voices_can_be_stored(tmp_path, store, full_voice, plain_voice, same):
    path = tmp_path / "spk2info.pt"
    voices_to_spk2info([full_voice(), plain_voice()], path)
    for voice in voices_from_spk2info(path, "model"):
        store.save(voice)
        same(store.load(voice.name), voice)


def test_a_prompt_without_text_keeps_its_speech(tmp_path, full_voice, same):
    path = tmp_path / "spk2info.pt"
    voice = full_voice(transcript="", prompt_text=(), description="", licence="")
    voices_to_spk2info([voice], path)
    same(voices_from_spk2info(path, voice.fingerprint)[0], voice)


def test_a_broken_file_is_one_line(tmp_path):
    path = tmp_path / "spk2info.pt"
    path.write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"^spk2info.pt"):
        voices_from_spk2info(path, "")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"embedding": torch.zeros(256)}, "an embedding of 256 and 80 mel bins; spk2info holds 192 and 80"),
        ({"mel": torch.zeros(50, 100)}, "an embedding of 192 and 100 mel bins"),
        ({"name": ""}, "voice name: '' is no name"),
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
