"""The mini model's text tokenizer: files as Qwen2's, the same for the same texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.cli.main import main
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_training.text_tokenizer import NUM_MERGES, learn_tokenizer
from vivavoce_training.weights import MINI

SENTENCES = Path(__file__).parents[2] / "benchmarks" / "sentences" / "held_out.txt"
FILES = {"merges.txt", "tokenizer_config.json", "vocab.json"}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "new"
    learn_tokenizer(SENTENCES.read_text(encoding="utf-8").splitlines(), folder)
    return folder


@pytest.mark.parametrize(
    "text", ["The cat sat on the mat.", "don't STOP", "1, 2 & 30%", "naïve – “quoted” 你好 🙂", "  two  spaces\n"]
)
def test_it_loads_as_any_checkpoints_and_loses_nothing(text: str, learned: Path) -> None:
    tokenizer = TextTokenizer.from_folder(learned)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_shorten_common_words_but_stay_short(learned: Path) -> None:
    tokenizer = TextTokenizer.from_folder(learned)
    assert len(tokenizer.encode(" the")) == 2
    assert max(len(tokenizer.decode([number])) for number in range(256, 256 + NUM_MERGES)) in (3, 4)


def test_the_vocabulary_is_bytes_merges_and_marks(learned: Path) -> None:
    tokenizer = TextTokenizer.from_folder(learned)
    merges = (learned / "merges.txt").read_text(encoding="utf-8").splitlines()
    assert len(merges) == NUM_MERGES + 1
    assert tokenizer.token_id("<|endoftext|>") == 256 + NUM_MERGES


def test_the_same_texts_give_the_same_files(learned: Path, tmp_path: Path) -> None:
    assert main(["train", "text-tokenizer", str(SENTENCES), str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == FILES
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (learned / name).read_bytes()


def test_the_mini_models_own_is_of_this_kind() -> None:
    tokenizer = TextTokenizer.from_folder(MINI / BACKBONE)
    assert tokenizer.token_id("<|endoftext|>") == 256 + NUM_MERGES
    # At least two speech tokens for a text token, as decoding asks for: 12 ids a second are fast speech.
    assert len(tokenizer.encode("She opened the window and listened to the quiet garden below.")) < 4 * 12
