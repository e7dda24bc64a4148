"""Words to be said otherwise: of everybody, of a voice, of a key's owner; from a folder that is read once."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce_textnorm.lexicon import MAX_WORDS, Lexicon, read_lexicon, read_lexicons
from vivavoce_textnorm.markup import _pattern
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.types import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"all": "SQL\tsequel\nAPI\tA P I\n", "voices/anna": "SQL\tanna\nGUI\tgooey\n", "keys/team": "SQL\tteam\n"}
    for name, words in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.tsv").write_text(words, encoding="utf-8")
    return tmp_path


def test_later_ones_win_and_names_are_never_paths(folder: Path) -> None:
    (folder / "voices" / ".tsv").write_text("SQL\thidden\n", encoding="utf-8")
    lexicons = read_lexicons(folder)
    assert lexicons is not None
    everybody = {"SQL": "sequel", "API": "A P I"}
    assert lexicons.of("team", "anna") == {"SQL": "team", "API": "A P I", "GUI": "gooey"}
    assert lexicons.of("team", "ben") == {"SQL": "team", "API": "A P I"}
    assert lexicons.of("", "anna") == {"SQL": "anna", "API": "A P I", "GUI": "gooey"}
    for name in ("", "all", "../all", "../voices/anna", "anna.tsv", str(folder / "voices" / "anna"), "\0"):
        assert lexicons.of(name, "") == everybody
        assert lexicons.of("", name) == everybody
    assert lexicons.of("team", "anna") is lexicons.of("team", "anna")
    for path in folder.rglob("*.tsv"):
        path.unlink()
    assert lexicons.of("", "") == pickle.loads(pickle.dumps(lexicons)).of("", "") == everybody
    assert read_lexicons(None) is None


def test_what_is_wrong_names_its_file_and_line(folder: Path) -> None:
    (folder / "keys" / "team.tsv").write_text("a\tb\nc\td\x07\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"line 2 of .*team.tsv is refused \(text: control character U\+0007"):
        read_lexicons(folder)
    (folder / "keys" / "team.tsv").write_text("a b\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"line 1 of .*keys/team.tsv is not a word"):
        read_lexicons(folder)
    (folder / "keys" / "team.tsv").rename(folder / "team.tsv")
    (folder / "team.tsv").write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"lexicons: .*team.tsv has an unknown name; name it all.tsv"):
        read_lexicons(folder)
    with pytest.raises(InvalidRequest, match="is not a folder"):
        read_lexicons(folder / "none")
    (folder / "all.tsv").write_text("".join(f"w{place}\tx\n" for place in range(MAX_WORDS + 1)), encoding="utf-8")
    with pytest.raises(InvalidRequest, match="more than 10000"):
        read_lexicon(folder / "all.tsv")


def test_a_lexicon_is_a_value(folder: Path) -> None:
    words = {"SQL": "sequel"}
    lexicon = Lexicon(words)
    words["SQL"] = "another"
    assert lexicon["SQL"] == "sequel"
    again = pickle.loads(pickle.dumps(lexicon))
    assert again == lexicon == {"SQL": "sequel"}
    assert hash(again) == hash(lexicon)
    with pytest.raises(InvalidText, match="int is not a text"):
        Lexicon({"SQL": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="'SQL' has the respelling ' '"):
        Lexicon({"SQL": " "})


@pytest.mark.slow
def test_the_longest_word_counts_and_patterns_are_not_kept_for_ever() -> None:
    lexicon = Lexicon({"New York": "a town", "New York City": "the town", "C++": "see plus plus"})
    said = read("New York City is in New York, C++ is not.", "en", Settings(lexicon=lexicon)).spoken
    assert said == "the town is in a town, see plus plus is not."
    most = _pattern.cache_info().maxsize
    assert most is not None
    for place in range(most + 10):
        words = {"aa": "cc", f"x{place}": "dd"}
        assert read(f"aa x{place}", "en", Settings(lexicon=Lexicon(words))).spoken == "cc dd"
    assert _pattern.cache_info().currsize == most
