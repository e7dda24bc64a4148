from __future__ import annotations

import json
import shutil
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from vivavoce.errors import CheckpointError, InvalidText
from vivavoce.service.text.tokenizer import SPECIAL_TOKENS, TextTokenizer

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


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_a_special_token_in_text_is_one_id(token: str, tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode(f"hi {token}there")

    assert ids == (*tokenizer.encode("hi "), tokenizer.token_id(token), *tokenizer.encode("there"))


@given(text=st.text(max_size=60))
def test_decoding_gives_the_composed_text_back(text: str, tokenizer: TextTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_empty_text_has_no_ids(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode("") == ()


def test_a_lone_surrogate_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidText, match=r"^text: U\+D83D at position 1 is half of a surrogate pair"):
        tokenizer.encode("a\ud83db")


def test_threads_share_a_tokenizer(tokenizer: TextTokenizer) -> None:
    texts = [f"text number {number} 你好" for number in range(64)]
    alone = [tokenizer.encode(text) for text in texts]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == alone


def test_one_file_does_for_three(tokenizer: TextTokenizer, copy: Path, tmp_path: Path) -> None:
    tokenizer._tokenizer.save(str(copy / "tokenizer.json"))
    for name in FILES:
        (copy / name).unlink()

    again = TextTokenizer.from_folder(tmp_path)

    text = "[laughter]你好, it's 3<|endofprompt|> naïve"
    assert again.encode(text) == tokenizer.encode(text)
    assert len(again) == len(tokenizer)


def test_padding_and_truncation_in_the_one_file_are_ignored(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    padded = Tokenizer.from_str(tokenizer._tokenizer.to_str())
    padded.enable_padding(length=32)
    padded.enable_truncation(2)
    padded.save(str(tmp_path / "tokenizer.json"))

    assert TextTokenizer.from_folder(tmp_path).encode("one two three") == tokenizer.encode("one two three")


def test_carriage_returns_and_version_line_in_merges_do_not_matter(copy: Path, tokenizer: TextTokenizer) -> None:
    merges = copy / "merges.txt"
    lines = merges.read_text(encoding="utf-8").split("\n")
    merges.write_bytes("\r\n".join(line for line in lines if not line.startswith("#")).encode())

    assert TextTokenizer.from_folder(copy).encode("the thing") == tokenizer.encode("the thing")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, copy: Path) -> None:
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
def test_a_corrupt_file_is_named_on_one_line(name: str, content: bytes, copy: Path) -> None:
    (copy / name).write_bytes(content)

    with pytest.raises(CheckpointError) as caught:
        TextTokenizer.from_folder(copy)

    assert str(copy / name) in str(caught.value)
    assert "copy the model's CosyVoice-BlankEN folder again" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_without_all_bytes_names_what_it_cannot_write(tmp_path: Path) -> None:
    vocabulary = {chr(code): code - 0x21 for code in range(0x21, 0x7F)} | {"Ġ": 94}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    small = TextTokenizer.from_folder(tmp_path)

    assert small.decode(small.encode("plain words[mn]")) == "plain words[mn]"
    with pytest.raises(InvalidText, match=r"cannot write 'é', '\\n', '你', '好', 'ü' and 1 more; leave them out"):
        small.encode("né\n你好üñé")
