"""Readers of books: chapters, blocks, and where each text that is not spoken went."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.books.make_book import make_book, page, write_epub
from vivavoce_books import BlockKind, Book, BookOptions, open_book
from vivavoce_books.html import Page, parse

SPEAK_ALL = BookOptions(footnotes="speak", tables="speak", front_matter="speak", code="speak")


def read(tmp_path: Path, name: str, content: str | bytes, options: BookOptions = BookOptions()) -> Book:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_book(path, options)


def texts(book: Book) -> list[list[str]]:
    return [[block.text or "—" for block in chapter.blocks] for chapter in book.chapters]


def silent(book: Book) -> list[tuple[str, str]]:
    return [(found.reason, found.text) for chapter in book.chapters for found in chapter.left_out]


@pytest.mark.parametrize("options", [BookOptions(), SPEAK_ALL])
def test_every_text_of_a_long_book_is_spoken_or_left_out(tmp_path: Path, options: BookOptions) -> None:
    made = make_book(tmp_path / "book.epub")
    book = open_book(tmp_path / "book.epub", options)
    spoken = [tuple(block.text for block in chapter.blocks if block.text) for chapter in book.chapters]
    assert sum(len(text) for chapter in spoken for text in chapter) >= 300_000
    if options == BookOptions():
        assert tuple(chapter.title for chapter in book.chapters) == made.titles
        assert tuple(spoken) == made.spoken
        assert sorted(text for _, text in silent(book)) == sorted(made.silent)
    characters = "".join(text for chapter in spoken for text in chapter) + "".join(text for _, text in silent(book))
    expected = "".join(text for chapter in made.spoken for text in chapter) + "".join(made.silent)
    added = "".join(", " for _ in range(2 * len(made.titles))) if options == SPEAK_ALL else ""  # between cells
    assert sorted((expected + added).replace(" ", "")) == sorted(characters.replace(" ", ""))
    assert (book.title, book.author, book.language) == ("The Long Way", "A. Nonymous", "en")
    assert book.cover is not None
    assert book.cover.content.startswith(b"\x89PNG")
    assert {block.language for chapter in book.chapters for block in chapter.blocks if block.text} == {"en", "de"}
    assert any(block.kind is BlockKind.SCENE_BREAK for chapter in book.chapters for block in chapter.blocks)


@pytest.mark.parametrize(
    ("body", "spoken"),
    [
        ('<p><span class="cap">O</span>nce</p>', ["Once"]),
        ('<p><img src="o.png" alt="O"/>nce</p>', ["Once"]),
        ("<p>a won&shy;der\nin two lines</p>", ["a wonder in two lines"]),
        ("<p>an exam-\nple</p><p>a well-\nknown well-known man</p>", ["an example", "a well-known well-known man"]),
        ("<p>红了\n樱桃</p>", ["红了樱桃"]),
        ("<p>one<br/>two</p>", ["one\ntwo"]),
        ("<p>a</p><p>* * *</p><p>b</p><hr/><p>c</p><p>⁂</p><p>d</p>", ["a", "—", "b", "—", "c", "—", "d"]),
        ("<hr/><p>a</p><hr/>", ["a"]),
        ("<p>漢<ruby>字<rp>(</rp><rt>じ</rt><rp>)</rp></ruby>だ</p>", ["漢字だ"]),
        ("<ul><li>a</li><li>b<ol><li>c</li></ol></li></ul>", ["a", "b", "c"]),
        ("<p>word[1] and [*].</p>", ["word and."]),
        ('<p>a<sup><a href="#n">2</a></sup>.</p><p id="n">the note</p><p>b</p>', ["a.", "b"]),
        ('<p>E=mc<sup>2</sup>, see <a href="#b">chapter 2</a></p><p id="b">b</p>', ["E=mc2, see chapter 2", "b"]),
        ("<figure><img src='x' alt='A cat'/><figcaption>My cat</figcaption></figure>", ["My cat"]),
        ('<h3><img src="x" alt="A heading"/></h3><p>a</p>', ["A heading", "a"]),
        ("<table><tr><td><p>all of the page</p></td></tr></table>", ["all of the page"]),
        ("text <b>without</b> a paragraph<div>and <i>one</i></div>", ["text without a paragraph", "and one"]),
        ("<p>x <code>y</code></p><pre><code>z</code></pre>", ["x y"]),
        ("<p>a<p>b" * 150 + "<ul><li>c<li>d</ul><a name='x'>" * 150, ["a", "b"] * 150 + ["c", "d"] * 150),
        ("<p>a</p><!-- no --><script>no</script><style>no</style><p>b</p>", ["a", "b"]),
    ],
)
def test_blocks_of_html(tmp_path: Path, body: str, spoken: list[str]) -> None:
    assert texts(read(tmp_path, "a.html", f"<html><body>{body}</body></html>")) == [spoken]


def test_options_speak_what_is_left_out_else(tmp_path: Path) -> None:
    body = (
        '<h1>One</h1><p>a<a epub:type="noteref" href="#n1">1</a></p><table><tr><th>k</th><th>v</th></tr></table>'
        "<pre><code>x = 1\ny = 2</code></pre><h1>Two</h1><p>b</p><section epub:type='titlepage'><p>T</p></section>"
        '<aside epub:type="footnote" id="n1"><p>The note.</p></aside>'
    )
    skipped, spoken = (read(tmp_path, "a.html", body, options) for options in (BookOptions(), SPEAK_ALL))
    assert texts(skipped) == [["One", "a"], ["Two", "b"]]
    assert silent(skipped) == [
        *(("footnote reference", "1"), ("table", "k v"), ("code", "x = 1 y = 2"), ("footnote", "The note.")),
        ("title page", "T"),
    ]
    assert texts(spoken) == [["One", "a", "k, v", "x = 1\ny = 2", "The note."], ["Two", "b", "T"]]


def test_chapters_of_html(tmp_path: Path) -> None:
    body = (
        "<h1>Book</h1><h2>Contents</h2><p>One, two</p><h2>Chapter 1</h2><h2>The start</h2><p>a</p><h3>Within</h3>"
        '<p lang="fr-CA">b</p><h2>Chapter 2</h2><p><i xml:lang="la">c</i></p>'
    )
    book = read(tmp_path, "a.html", f'<html lang="de"><title>T</title><meta name="author" content="A"><body>{body}')
    assert [chapter.title for chapter in book.chapters] == ["Chapter 1: The start", "Chapter 2"]
    assert texts(book) == [["Book", "Chapter 1", "The start", "a", "Within", "b"], ["Chapter 2", "c"]]
    assert [block.language for chapter in book.chapters for block in chapter.blocks][3:] == [
        "de",
        "de",
        "fr",
        "de",
        "la",
    ]
    assert (book.title, book.author, book.language) == ("T", "A", "de")
    assert texts(read(tmp_path, "b.html", "<h3>One</h3>a<h3>Two</h3>b")) == [["One", "a"], ["Two", "b"]]
    assert read(tmp_path, "c.html", "<p>a</p>").chapters[0].title == ""


def test_markdown(tmp_path: Path) -> None:
    text = (
        "---\ntitle: T\nauthor: 'A'\nlang: en\n---\n"
        "# One\n\nA *word*[^1] [link](x) and\nmore.  \nEnd\n\n***\n\n- i\n- k\n\n"
        "> said\n\n![alt](x.png)\n\n[^1]: note\n[^2]: A second\n  note.\n\n"
        "# Two\n\n| a | b |\n|--|--|\n| c | d |\n\nb[^2]\n"
    )
    book, spoken = (read(tmp_path, "a.md", text, options) for options in (BookOptions(), SPEAK_ALL))
    assert (book.title, book.author, book.language) == ("T", "A", "en")
    assert texts(book) == [["One", "A word link and more.\nEnd", "—", "i", "k", "said"], ["Two", "b"]]
    assert texts(spoken)[0][-1] == "note"
    assert texts(spoken)[1] == ["Two", "a, b", "c, d", "b", "A second note."]


def test_plain_text(tmp_path: Path) -> None:
    start, end = (f"*** {mark} OF THE PROJECT GUTENBERG EBOOK ALICE ***" for mark in ("START", "END"))
    text = (
        f"Title: Alice\nAuthor: L. C.\nLanguage: English\n\n{start}\n\n"
        "CONTENTS\n\n CHAPTER I.  Down\n CHAPTER II. Up\n\n"
        "CHAPTER I.\nDown\n\nAlice was beginning to get very tired of sitting by her sister on the\n"
        "bank, and of having nothing to do: once or twice she had peeped [1] into the\nbook that her sister was rea-\n"
        "\n12\n\nding on the bank that day, and it had no picture. She was reading it to the\nend.\n\n[1] A note.\n\n"
        "  How doth the little crocodile\n  Improve his shining tail,\n\n * * *\n\nMore.\n\n[Illustration: a cat]\n\n"
        f"CHAPTER II.\n\nThe way up\n\n“Curiouser!”\n\n{end}\n\nLicence."
    )
    book = read(tmp_path, "a.txt", text)
    assert (book.title, book.author, book.language) == ("Alice", "L. C.", "en")
    assert [chapter.title for chapter in book.chapters] == ["CHAPTER I. Down", "CHAPTER II: The way up"]
    assert texts(book)[0][2:] == ["How doth the little crocodile\nImprove his shining tail,", "—", "More."]
    assert " peeped into the book that her sister was reading on the bank " in texts(book)[0][1]
    assert [reason for reason, _ in silent(book)] == [
        *("Project Gutenberg's header", "table of contents", "table of contents", "footnote reference", "page number"),
        *("footnote reference", "ornament", "image", "footnote", "Project Gutenberg's footer"),
    ]


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("第一章 开始\n\n　　春天来了。\n　　雨停了。\n\n第二章 结束\n\n　　他走了。", ["第一章 开始", "第二章 结束"]),
        ("I.\n\nA text.\n\nII.\n\nA text.", ["I.", "II."]),
        ("Prologue\n\nA text.\n\nKapitel Eins\n\nA text.", ["Prologue", "Kapitel Eins"]),
        ("Just a text.\n\nPart of it was good, and chapter 2 was not.\n\nChapter one began badly.", [""]),
    ],
)
def test_chapters_of_plain_text(tmp_path: Path, text: str, titles: list[str]) -> None:
    assert [chapter.title for chapter in read(tmp_path, "a.txt", text).chapters] == titles


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "gb18030"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = "他说：“春天来了，雨停了。”" if encoding == "gb18030" else "Für wen? – Chère “Zoë”, für dich."
    assert texts(read(tmp_path, "a.txt", text.encode(encoding))) == [[text]]
    declared = f'<meta charset="{encoding.removesuffix("-sig")}"><p>{text}</p>'
    assert texts(read(tmp_path, "a.html", declared.encode(encoding))) == [[text]]


def test_chapters_of_an_epub(tmp_path: Path) -> None:
    files = {
        "toc.xhtml": page('<nav><ol><li><a href="a.xhtml">One</a></li></ol></nav>'),
        "pre.xhtml": page("<h1>Preface</h1><p>before</p>"),
        "a.xhtml": page(
            '<h2 id="x">First</h2><p>a<a href="notes.xhtml#n1"><sup>1</sup></a></p><h2 id="y">Next</h2><p>b</p>'
        ),
        "a2.xhtml": page("<p>b goes on</p>"),
        "c d.xhtml": page("<p>c</p>"),
        "notes.xhtml": page('<h1>Notes</h1><p id="n1"><a href="a.xhtml#x">1</a> The note.</p>'),
        "nav.xhtml": page(
            '<nav epub:type="toc"><ol><li><a href="a.xhtml">Part One</a><ol><li><a href="a.xhtml#x">Chapter 1</a></li>'
            '<li><a href="a.xhtml#y">Chapter 2</a></li></ol></li>'
            '<li><a href="c%20d.xhtml">Chapter 3</a></li></ol></nav>'
        ),
    }
    spine = [name for name in files if name != "nav.xhtml"]
    guide = '<guide><reference type="toc" href="toc.xhtml"/></guide>'
    write_epub(tmp_path / "a.epub", files, spine=spine, more=guide)
    book, spoken = (open_book(tmp_path / "a.epub", BookOptions(footnotes=option)) for option in ("skip", "speak"))
    assert [chapter.title for chapter in book.chapters] == ["Preface", "Part One: Chapter 1", "Chapter 2", "Chapter 3"]
    assert texts(book) == [["Preface", "before"], ["First", "a"], ["Next", "b", "b goes on"], ["c"]]
    assert texts(spoken)[1] == ["First", "a", "1 The note."]
    assert ("table of contents", "One") in silent(book)
    assert book.cover is None


def test_an_epub_2_has_its_chapters_from_the_ncx(tmp_path: Path) -> None:
    points = "".join(
        f'<navPoint><navLabel><text>Title {n}</text></navLabel><content src="{n}.xhtml"/></navPoint>' for n in (1, 2)
    )
    ncx = f'<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "x"><ncx xmlns="x"><navMap>{points}</navMap></ncx>'
    files = {f"{n}.xhtml": page(f"<p>text {n}</p>") for n in (1, 2)}
    write_epub(tmp_path / "a.epub", files, spine=list(files), extra={"OPS/toc.ncx": ncx})
    plain = open_book(tmp_path / "a.epub")
    assert texts(plain) == [["text 1", "text 2"]]
    item = '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
    write_epub(tmp_path / "a.epub", files, spine=list(files), extra={"OPS/toc.ncx": ncx}, more=item)
    assert [chapter.title for chapter in open_book(tmp_path / "a.epub").chapters] == ["Title 1", "Title 2"]


def test_all_characters_of_a_document_are_kept() -> None:
    markup = (Path(__file__).parents[2] / "src/vivavoce/server/http/web/speak.html").read_text(encoding="utf-8")
    soup = parse(markup, "page")
    found = "".join(item.text for item in Page(soup, "page", BookOptions()).items)
    assert len(found) > 500
    assert sorted("".join(soup.get_text().split())) == sorted("".join(found.split()))
