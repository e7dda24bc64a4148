"""Writes an EPUB of generated sentences, always the same: `python -m tests.books.make_book book.epub`."""

from __future__ import annotations

import random
import struct
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

NAMES = ("Ada", "Bertram", "the miller", "the old captain", "a grey cat", "the doctor", "her sister", "the stranger")
VERBS = ("walked slowly to", "looked for a long time at", "had never seen", "came back from", "spoke of", "dreamt of")
PLACES = ("the harbour", "a house by the river", "the market", "the dark wood", "an empty church", "the northern road")
ENDS = ("before the rain began", "while the bells rang", "and said nothing", "as in every autumn", "with a small lamp")
GERMAN = ("Der Müller ging langsam zum Fluss.", "Die alte Brücke war längst verfallen.", "Niemand sprach ein Wort.")
MIMETYPE, XHTML = "application/epub+zip", "application/xhtml+xml"


@dataclass(frozen=True)
class Made:
    """The texts of the book that are spoken, by chapter, and those that are not."""

    titles: tuple[str, ...]
    spoken: tuple[tuple[str, ...], ...]
    silent: tuple[str, ...]


def png(width: int = 300, height: int = 400) -> bytes:
    """A picture of colours that fade into each other (PNG specification, sections 5 and 9)."""
    rows = b"".join(
        b"\0" + bytes(value for x in range(width) for value in (x * 255 // width, y * 255 // height, 96))
        for y in range(height)
    )
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def make_book(path: Path, chars: int = 300_000, chapters: int = 12, seed: int = 7) -> Made:
    """Write a book of at least `chars` characters of speech, with notes, a table, pictures and two languages."""
    chance = random.Random(seed)
    titles, spoken, silent, documents = [], [], ["The Long Way", "Copyright nobody, ever."], {}
    for number in range(1, chapters + 1):
        title = f"Chapter {number}: {chance.choice(PLACES).title()}"
        texts, body, at = [title], [f"<h1>{title}</h1>"], 0
        while sum(map(len, texts)) < chars / chapters + 1:
            at += 1
            text = " ".join(_sentence(chance) for _ in range(chance.randint(2, 6)))
            body.append(_paragraph(text, at, number, silent))
            texts.append(text)
            if at % 40 == 0:
                body.append("<hr/>")
            if at % 60 == 1:
                german = " ".join(chance.choices(GERMAN, k=2))
                body.append(f'<p lang="de">{german}</p>')
                texts.append(german)
        body.append(f"<table><tr><th>Day {number}</th><th>Miles</th></tr><tr><td>Monday</td><td>{at}</td></tr></table>")
        body.append(
            f'<figure><img src="cover.png" alt="A picture {number}"/><figcaption>Map {number}</figcaption></figure>'
        )
        texts.append(f"Map {number}")
        silent += [f"Day {number} Miles Monday {at}", f"A picture {number}"]
        notes = "".join(
            f'<aside epub:type="footnote" id="n{note}"><p>Note {number}.{note}</p></aside>'
            for note in range(10, at + 1, 10)
        )
        silent += [f"Note {number}.{note}" for note in range(10, at + 1, 10)]
        documents[f"c{number}.xhtml"] = "\n".join((*body, notes))
        titles.append(title)
        spoken.append(tuple(texts))
    _write(path, documents, titles)
    return Made(tuple(titles), tuple(spoken), tuple(silent))


def _sentence(chance: random.Random) -> str:
    words = (chance.choice(NAMES), chance.choice(VERBS), chance.choice(PLACES), chance.choice(ENDS))
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}{chance.choice('....!?')}"


def _paragraph(text: str, at: int, chapter: int, silent: list[str]) -> str:
    """One paragraph: in lines; every tenth with a footnote, every seventh with a page's number."""
    markup = text.replace(". ", ".\n")
    if at % 10 == 0:
        silent.append(str(at // 10))
        markup += f'<a epub:type="noteref" href="#n{at}">{at // 10}</a>'
    if at % 7 == 0:
        silent.append(f"page {chapter}-{at}")
        markup = f'<span epub:type="pagebreak" id="p{at}">page {chapter}-{at}</span>{markup}'
    return f"<p>{markup}</p>"


def page(body: str, title: str = "", language: str = "en") -> str:
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml"'
        f' xmlns:epub="http://www.idpf.org/2007/ops" xml:lang="{language}"><head><title>{title}</title></head>'
        f"<body>{body}</body></html>"
    )


def _write(path: Path, documents: dict[str, str], titles: list[str]) -> None:
    front = {
        "title.xhtml": '<section epub:type="titlepage"><p>The Long Way</p></section>',
        "copyright.xhtml": '<section epub:type="copyright-page"><p>Copyright nobody, ever.</p></section>',
    }
    links = "".join(f'<li><a href="{name}">{title}</a></li>' for name, title in zip(documents, titles, strict=True))
    files = {name: page(body) for name, body in {**front, **documents}.items()}
    files["nav.xhtml"] = page(f'<nav epub:type="toc"><ol>{links}</ol></nav>')
    write_epub(path, files, spine=[*front, *documents], cover=png(), title="The Long Way", author="A. Nonymous")


def write_epub(
    path: Path,
    files: dict[str, str],
    *,
    spine: list[str],
    cover: bytes = b"",
    title: str = "A Title",
    author: str = "An Author",
    extra: dict[str, bytes | str] | None = None,
    more: str = "",
) -> None:
    """Write an EPUB. extra: files by their whole names, which replace others; more: of the package's document."""
    nav = {"nav.xhtml": ' properties="nav"'}
    items = "".join(f'<item id="{name}" href="{name}" media-type="{XHTML}"{nav.get(name, "")}/>' for name in files)
    picture = '<item id="cover" href="cover.png" media-type="image/png" properties="cover-image"/>' if cover else ""
    order = "".join(f'<itemref idref="{name}"/>' for name in spine)
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title>'
        f"<dc:creator>{author}</dc:creator><dc:language>en-GB</dc:language></metadata>"
        f"<manifest>{items}{picture}</manifest><spine>{order}</spine>{more}</package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
        '<rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    whole: dict[str, bytes | str] = {"mimetype": MIMETYPE, "META-INF/container.xml": container, "OPS/book.opf": package}
    whole |= {f"OPS/{name}": text for name, text in files.items()} | ({"OPS/cover.png": cover} if cover else {})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (whole | (extra or {})).items():
            archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    make_book(Path(sys.argv[1]))
