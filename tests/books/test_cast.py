"""The cast: entries and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivavoce.errors import InvalidRequest
from vivavoce_books.cast import NARRATOR, Part, read_cast


def test_files_and_entries_make_one_cast(tmp_path: Path) -> None:
    file = tmp_path / "cast.txt"
    file.write_text("# the family\nAnna = anna.wav | What she says = there.  # loud\n\nTom=robot\nNarrator = calm\n")
    cast = read_cast([str(file), "tom=bright"], Part())
    assert cast == {
        NARRATOR: Part("calm"),
        "anna": Part("anna.wav", "What she says = there."),
        "tom": Part("bright"),
    }
    assert read_cast([str(file)], Part("highland"))[NARRATOR] == Part("highland")
    assert read_cast([], Part()) == {NARRATOR: Part()}


@pytest.mark.parametrize("entry", ["anna=", "=robot", "a:b=robot", "anna= | words"])
def test_half_an_entry_is_refused(entry: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an entry; write NAME = VOICE"):
        read_cast([entry], Part())


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cast.txt"
    file.write_text("anna = bright\ntom\n")
    with pytest.raises(InvalidRequest, match=r"line 2 of .*cast\.txt"):
        read_cast([str(file)], Part())
    file.write_bytes(b"anna = \xff\n")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        read_cast([str(file)], Part())
    with pytest.raises(InvalidRequest, match="No such file"):
        read_cast([str(tmp_path / "none")], Part())
