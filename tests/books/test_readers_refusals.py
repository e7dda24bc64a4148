"""Files that are no books, damaged, locked or hostile: one line each that names the file and the way out."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.books.make_book import page, write_epub
from vivavoce.errors import InvalidRequest
from vivavoce_books import book as book_module
from vivavoce_books import open_book

LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
CONTAINER = "META-INF/container.xml"
ROOT = '<container><rootfiles><rootfile full-path="{}"/></rootfiles></container>'
LOCKED = '<encryption><EncryptedData><EncryptionMethod Algorithm="{}"/></EncryptedData></encryption>'


def refusal(path: Path) -> str:
    with pytest.raises(InvalidRequest) as raised:
        open_book(path)
    line = str(raised.value)
    assert line.startswith("book: ")
    assert path.name in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdf", b"%PDF-1.7", "is a PDF; convert it"),
        ("a.mobi", b"\0" * 60 + b"BOOKMOBI", "is a Kindle book; convert it"),
        ("a.rtf", rb"{\rtf1 x}", "is an RTF document; convert it"),
        ("a.txt", b"\x7fELF\0\0\0\x01", "is not text"),
        ("a.txt", b"RIFF\x24\0\0\0WAVEfmt \xff\xfe", "is an audio file; give an EPUB, HTML, Markdown or text file"),
        ("a.txt", b"ID3\4\0\xff", "is an audio file"),
        ("a.txt", b"\xff\xfb\x90\x64", "is an audio file"),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\xae\xff\xfe\xfd" * 9, "is not text but a binary file; give an EPUB"),
        ("a.txt", b"", "has no text to speak"),
        ("a.html", b"<html><body><img src='x'></body></html>", "has no text to speak"),
        ("a.txt", "Привет, как дела".encode("cp1251"), "unknown encoding; save it as UTF-8"),
        ("a.txt", b"\xff\xfea", "unknown encoding"),
        ("a.html", LAUGHS.encode() + b"<p>&b;</p>", "defines entities"),
        ("a.html", b"<div>" * 101 + b"a", "beyond the limit of 100"),
        ("a.md", b">" * 101 + b" a", "beyond the limit of 100"),
        ("a.epub", b"PK\3\4 and then nothing", "damaged EPUB"),
        ("a.epub", b"PK\3\4" + b"PK\5\6" + b"\0" * 6 + b"\xff\xff" + b"\0" * 10, "65535 files"),
    ],
)
def test_files_that_are_no_books(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert reason in refusal(tmp_path / name)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "is a folder; give one file" in refusal(tmp_path)
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "none.epub")


def test_a_text_above_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(100_000_000)
    assert "has 100000000 bytes, above the limit of 20000000" in refusal(tmp_path / "a.txt")


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    write_epub(tmp_path / "a.epub", {"a.xhtml": " " * (book_module.MAX_BOOK_BYTES + 1)}, spine=["a.xhtml"])
    assert (tmp_path / "a.epub").stat().st_size < 100_000
    assert "more than the limit of 20000000 bytes (at 'OPS/a.xhtml')" in refusal(tmp_path / "a.epub")


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({CONTAINER: "<container/>"}, "names no package"),
        ({CONTAINER: "<container"}, "'META-INF/container.xml' in 'a.epub' is broken XML"),
        ({CONTAINER: f"{LAUGHS}<container>&b;</container>"}, "defines entities"),
        ({CONTAINER: ROOT.format("none.opf")}, "lacks 'none.opf'"),
        ({CONTAINER: ROOT.format("../../etc/passwd")}, "outside itself ('../../etc/passwd')"),
        ({"OPS/book.opf": "<package/>"}, "empty spine"),
        ({"OPS/book.opf": '<package><spine><itemref idref="x"/></spine></package>'}, "'x' in its spine"),
        ({"META-INF/encryption.xml": LOCKED.format("http://www.w3.org/2001/04/xmlenc#aes128-cbc")}, "encrypted (DRM"),
        ({"META-INF/rights.xml": "<rights/>"}, "encrypted (DRM, META-INF/rights.xml)"),
        ({"OPS/a.xhtml": page("<p>&b;</p>").replace("<!DOCTYPE html>", LAUGHS)}, "defines entities"),
    ],
)
def test_damaged_and_locked_epubs(tmp_path: Path, extra: dict[str, bytes | str], reason: str) -> None:
    write_epub(tmp_path / "a.epub", {"a.xhtml": page("<p>a</p>")}, spine=["a.xhtml"], extra=extra)
    assert reason in refusal(tmp_path / "a.epub")


def test_an_epub_lacks_a_file_or_has_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "a.epub"
    write_epub(path, {"a.xhtml": page("<p>a</p>")}, spine=["b.xhtml"], more='<item id="b.xhtml" href="b.xhtml" />')
    with zipfile.ZipFile(path) as archive:
        assert "OPS/b.xhtml" not in archive.namelist()
    assert "has no text" in refusal(path)  # its type is unknown
    more = '<item id="b.xhtml" href="b.xhtml" media-type="application/xhtml+xml"/>'
    write_epub(path, {"a.xhtml": page("<p>a</p>")}, spine=["b.xhtml"], more=more)
    assert "lacks 'OPS/b.xhtml'" in refusal(path)
    write_epub(path, {"a.xhtml": page("<p>abc</p>")}, spine=["a.xhtml"])
    content = bytearray(path.read_bytes())
    at = content.index(b"OPS/a.xhtml") + len("OPS/a.xhtml") + 20
    content[at : at + 40] = b"\xff" * 40
    path.write_bytes(content)
    assert "has a damaged file 'OPS/a.xhtml'" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "x")
    assert "is a zip archive, but no EPUB" in refusal(path)


def test_scrambled_fonts_are_no_lock(tmp_path: Path) -> None:
    extra: dict[str, bytes | str] = {"META-INF/encryption.xml": LOCKED.format("http://www.idpf.org/2008/embedding")}
    write_epub(tmp_path / "a.epub", {"a.xhtml": page("<p>a</p>")}, spine=["a.xhtml"], extra=extra)
    assert open_book(tmp_path / "a.epub").chapters[0].blocks[0].text == "a"
