from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import YAML_OF
from vivavoce.errors import CheckpointError, InvalidText
from vivavoce.frontend.text.tokenizer import PRONUNCIATION_TOKENS, SPECIAL_TOKENS, TextTokenizer

FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


@pytest.fixture
def copy(tokenizer_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tokenizer's folder, free to be damaged."""
    for name in FILES:
        shutil.copy(tokenizer_folder / name, tmp_path / name)
    return tmp_path


def test_special_tokens_follow_in_order_and_known_ones_keep_their_ids(tokenizer: TextTokenizer) -> None:
    assert [tokenizer.token_id(token) for token in SPECIAL_TOKENS] == list(range(557, 576))
    assert tokenizer.token_id("<|endoftext|>") == 556
    assert tokenizer.token_id("no such token") is None
    assert len(tokenizer) == 576


def test_the_first_generation_reads_text_with_whisper_s_vocabulary(tokenizer_folder: Path, tmp_path: Path) -> None:
    """The stored ids are those of openai-whisper 20250625: of many scripts, special tokens, runs and odd spaces."""
    (tmp_path / YAML_OF[Generation.V1]).touch()
    first = TextTokenizer.from_folder(tmp_path / "CosyVoice-BlankEN")
    cases = json.loads((tokenizer_folder.parent / "whisper_ids.json").read_text(encoding="utf-8"))
    assert [list(first.encode(case["text"])) for case in cases] == [case["ids"] for case in cases]
    assert [first.decode(case["ids"]) for case in cases] == [case["text"] for case in cases]
    assert len(first) == 51_866
    named = {"<|endoftext|>": 50257, "<|yue|>": 50358, "<|0.00|>": 50365, "<|30.00|>": 51865, "<|endofprompt|>": None}
    assert {token: first.token_id(token) for token in named} == named


def test_the_third_generation_knows_phones_and_pinyin_after_these(tokenizer_folder: Path, tmp_path: Path) -> None:
    """Their ids follow those of CosyVoice2's tokens; a folder whose files know them gives them its own."""
    folder = tmp_path / "CosyVoice-BlankEN"
    shutil.copytree(tokenizer_folder, folder)
    assert TextTokenizer.from_folder(folder).token_id("[AA0]") is None
    (tmp_path / YAML_OF[Generation.V3]).touch()
    third = TextTokenizer.from_folder(folder)
    assert [third.token_id(token) for token in (*SPECIAL_TOKENS, *PRONUNCIATION_TOKENS)] == list(range(557, 837))
    named = {
        "<|endofsystem|>": 576,
        "[AA]": 577,
        "[AA0]": 578,
        "[B]": 601,
        "[ZH]": 660,
        "[a]": 661,
        "[ǎo]": 825,
        "[ǜ]": 836,
    }
    assert {token: third.token_id(token) for token in named} == named
    text = "爱好[h][ǎo], I [HH][AY1]"
    assert third.decode(third.encode(text)) == text
    assert third.parts(text) == ["爱好", "[h]", "", "[ǎo]", ", I ", "[HH]", "", "[AY1]", ""]
    (folder / "tokenizer.json").write_text(third.to_json(), encoding="utf-8")
    (tmp_path / YAML_OF[Generation.V3]).unlink()
    assert TextTokenizer.from_folder(folder).token_id("[ǜ]") == 836


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_a_special_token_in_text_is_one_id(token, tokenizer):
    ids = tokenizer.encode(f"hi {token}there")
    assert ids == (*tokenizer.encode("hi "), tokenizer.token_id(token), *tokenizer.encode("there"))


@given(text=st.text(max_size=60))
def test_decoding_gives_the_composed_text_back(text: str, tokenizer: TextTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_a_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(InvalidText, match=r"^text: U\+D83D at position 1 is half of a surrogate pair"):
        tokenizer.encode("a\ud83db")


def test_other_ways_to_write_the_files_make_the_same_tokenizer(tokenizer, copy):
    """Merges with carriage returns and without a version line; one file in place of three."""
    merges = copy / "merges.txt"
    lines = merges.read_text(encoding="utf-8").split("\n")
    merges.write_bytes("\r\n".join(line for line in lines if not line.startswith("#")).encode())
    found = [TextTokenizer.from_folder(copy)]
    for name in FILES:
        (copy / name).unlink()
    (copy / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    found.append(TextTokenizer.from_folder(copy))
    text = "[laughter]你好, it's 3<|endofprompt|> naïve the thing"
    for again in found:
        assert again.encode(text) == tokenizer.encode(text)
        assert len(again) == len(tokenizer)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name, copy):
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name}: the file is missing; copy the model's"):
        TextTokenizer.from_folder(copy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", b"{"),
        ("vocab.json", b"[]"),
        ("vocab.json", b"{}"),
        ("vocab.json", b'{"a": "b"}'),
        ("vocab.json", b"\xff\xfe"),
        ("vocab.json", b'{"a": ' + b"[" * 100_000),
        ("vocab.json", b'{"a": ' + b"1" * 5_000 + b"}"),
        ("vocab.json", b" " * 32_000_001),
        ("tokenizer.json", b"[" * 100_000),
        ("merges.txt", b"\n" * 32_000_001),
        ("merges.txt", b"a b c\n"),
        ("merges.txt", b"nowhere known\n"),
        ("tokenizer_config.json", b"null"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": []}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"556": {}}}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {"content": "y"}}}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"999": {"content": "<|endoftext|>"}}}'),
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_corrupt_file_is_named_on_one_line(name, content, copy):
    (copy / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"copy the model's CosyVoice-BlankEN folder again, whole$") as caught:
        TextTokenizer.from_folder(copy)
    assert str(copy / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(copy)) + 400


def test_a_vocabulary_without_all_bytes_names_what_it_cannot_write(tmp_path: Path) -> None:
    vocabulary = {chr(code): code - 0x21 for code in range(0x21, 0x7F)} | {"Ġ": 94}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    small = TextTokenizer.from_folder(tmp_path)

    assert small.decode(small.encode("plain words[mn]")) == "plain words[mn]"
    with pytest.raises(InvalidText, match=r"cannot write 'é', '\\n', '你', '好', 'ü' and 1 more; leave them out"):
        small.encode("né\n你好üñé")
