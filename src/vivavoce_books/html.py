"""Reads HTML and Markdown: the blocks of a document in order, and the parts that are not spoken."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_books.book import BlockKind, Book, BookOptions
from vivavoce_books.chapters import Item, divide, one_line, start_at_headings
from vivavoce_books.text import LINE_END, NOTE_START, ORNAMENT, language_code, tidy, vocabulary

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag


MAX_DEPTH = 100
"""Maximum depth of nested elements; books have about 20."""
MAX_OPEN_TAGS = 300
"""Maximum number of < with no > between them; html.parser takes time in proportion to the square of this number."""
UNSEEN = frozenset({"head", "script", "style", "template", "title", "meta", "link"})
BLOCK = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|div|fieldset|figcaption|figure|footer"
    "|form|h[1-6]|header|hgroup|html|legend|li|main|nav|[ou]l|p|pre|section|summary|table|t(?:body|d|foot|h|head|r)"
)
OPTIONAL_ENDS = {"p": BLOCK.pattern, "li": "li", "a": "a", "tr": "tr"} | {
    **dict.fromkeys(("dt", "dd"), "d[dt]"),
    **dict.fromkeys(("td", "th"), "t[dhr]"),
}
"""Element that may lack an end tag → start tags that end it (HTML, 13.1.2.4), which html.parser does not know."""
SILENT_TAGS = {
    **{"rt": "ruby", "rp": "ruby", "rtc": "ruby", "svg": "image", "math": "formula", "nav": "table of contents"},
    **dict.fromkeys(("audio", "video", "iframe", "object", "canvas"), "media"),
    **dict.fromkeys(("button", "select", "textarea", "noscript"), "form"),
}
SILENT_KINDS = {
    **dict.fromkeys(("pagebreak", "doc-pagebreak", "pagenum", "pageno", "page-number"), "page number"),
    **dict.fromkeys(("noteref", "doc-noteref", "footnote-ref", "fnanchor"), "footnote reference"),
    **dict.fromkeys(("backlink", "doc-backlink", "footnote-backref"), "footnote reference"),
    "pg-boilerplate": "Project Gutenberg's licence",
}
"""epub:type, role or class of an element that is not spoken → the reason."""
FRONT_KINDS = {
    **dict.fromkeys(("cover", "doc-cover"), "cover page"),
    **dict.fromkeys(("titlepage", "halftitlepage", "title-page"), "title page"),
    **dict.fromkeys(("copyright-page", "imprint", "colophon", "doc-colophon"), "copyright page"),
    **dict.fromkeys(("toc", "doc-toc", "landmarks", "page-list", "loi", "lot"), "table of contents"),
    **dict.fromkeys(("index", "doc-index"), "index"),
}
"""epub:type or role of front matter and of an index → the reason to leave it out."""
NOTES = {f"{prefix}{name}" for prefix in ("", "doc-") for name in ("footnote", "endnote", "footnotes", "endnotes")}
_NOTE_SIGN = re.compile(r"[\[(［]?\s*(?:\d{1,4}|[*†‡§¶]{1,4}|[ivxlc]{1,6}|[a-z])\s*[.\])］]?|[↩↑⏎^]\ufe0e?")


@dataclass
class Links:
    """Anchors seen so far, and anchors of footnotes. A footnote link to a seen anchor leads back to the text."""

    seen: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Here:
    """Properties that an element passes on to the elements in it.

    reason: the text is left out, for this reason. level: of the heading. note: anchor of the footnote. table: in a
    table with data. row: in a row of such a table, which is one block. lines: keep line ends.
    """

    language: str | None = None
    reason: str = ""
    level: int = 0
    note: str | None = None
    table: bool = False
    row: bool = False
    lines: bool = False


def parse(markup: str, label: str) -> BeautifulSoup:
    try:
        from bs4 import BeautifulSoup
    except ImportError:
        raise MissingDependency("books need Beautiful Soup; type pip install 'vivavoce[books]'") from None
    if "<!ENTITY" in markup:
        raise InvalidRequest(f"book: {label} defines entities (<!ENTITY), which are not read; write their text instead")
    if any(part.count("<") > MAX_OPEN_TAGS for part in markup.split(">")):
        raise InvalidRequest(f"book: {label} has broken HTML (over {MAX_OPEN_TAGS} tags without an end); repair it")
    for name, following in OPTIONAL_ENDS.items():
        started, ended = (len(re.findall(rf"(?i)<{slash}{name}[\s>]", markup)) for slash in ("", "/"))
        if ended < started:
            markup = re.sub(rf"(?i)(?=<(?:{following})[\s>])", f"</{name}>", markup)
    try:
        return BeautifulSoup(markup, "html.parser")
    except (AssertionError, RecursionError, ValueError) as error:  # html.parser raises no others
        raise InvalidRequest(f"book: {label} has broken HTML ({one_line(str(error))}); repair the markup") from None


def read_html(markup: str, label: str, options: BookOptions) -> Book:
    soup = parse(markup, label)
    author = soup.find("meta", attrs={"name": re.compile("^(author|dc.creator)$", re.IGNORECASE)})
    language = language_code(attribute(soup.html, "lang") or attribute(soup.html, "xml:lang"))
    items = start_at_headings(Page(soup, label, options).items)
    named = soup.title or soup.h1
    title = one_line(named.get_text()) if named else ""
    return Book(title, one_line(attribute(author, "content")), language, divide(items, options))


def attribute(tag: Tag | None, name: str) -> str:
    found = tag.get(name) if tag is not None else None
    return found if isinstance(found, str) else " ".join(found or ())


def words_of(tag: Tag) -> str:
    """Return all text within an element, with a space between the texts of different elements."""
    return one_line(" ".join(_strings(tag)))


def _strings(tag: Tag) -> Iterator[str]:
    return (str(node) for node in tag.find_all(string=True) if _is_text(node))


def _is_text(node: object) -> bool:
    from bs4 import element

    unseen = (element.Comment, element.Declaration, element.Doctype, element.ProcessingInstruction)
    return not isinstance(node, (*unseen, element.Script, element.Stylesheet, element.TemplateString))


class Page:
    """Items of a document, in order. base: path of the document in the book; reason: why it is left out, or ""."""

    def __init__(
        self,
        soup: BeautifulSoup,
        label: str,
        options: BookOptions,
        *,
        base: str = "",
        reason: str = "",
        links: Links | None = None,
    ) -> None:
        self.items: list[Item] = []
        self._soup, self._label, self._options, self._base = soup, label, options, base
        self._links = links or Links()
        self._pieces: list[tuple[str, str | None]] = []
        self._silent: list[tuple[str, str]] = []
        self._ids: list[str] = []
        self._refs: list[str] = []
        self._note: str | None = None
        here = Here(reason=reason)
        self._children(soup, here, 0)
        self._flush(here)

    @cached_property
    def _words(self) -> frozenset[str]:
        return vocabulary(" ".join(_strings(self._soup)))

    def _children(self, parent: Tag, here: Here, depth: int) -> None:
        from bs4 import Tag

        if depth > MAX_DEPTH:
            raise InvalidRequest(
                f"book: {self._label} has elements within each other beyond the limit of {MAX_DEPTH}; simplify it"
            )
        for child in parent.children:
            if isinstance(child, Tag):
                self._element(child, here, depth + 1)
            elif _is_text(child):
                text = str(child)
                self._pieces.append((text.replace("\n", LINE_END) if here.lines else text, here.language))

    def _element(self, tag: Tag, here: Here, depth: int) -> None:
        name = tag.name.rpartition(":")[2]
        if name in UNSEEN:
            return
        types = {word.lower() for key in ("epub:type", "role") for word in attribute(tag, key).split()}
        kinds = types | {word.lower() for word in attribute(tag, "class").split()}
        inner = self._within(tag, name, types, kinds, here)
        block = BLOCK.fullmatch(name) and not here.row
        if block or name == "hr":
            self._flush(here)
        if tag.get("id") or (name == "a" and tag.get("name")):
            self._anchor(attribute(tag, "id") or attribute(tag, "name"), inner)
        reason = self._silence(tag, name, kinds, inner)
        if reason:
            self._leave_out(tag, reason)
        elif name == "hr":
            self.items.append(Item(BlockKind.SCENE_BREAK, ids=self._taken_ids()))
        elif name == "br":
            self._pieces.append((LINE_END, None))
        elif name in ("img", "image"):
            self._image(tag)
        elif inner.level and not inner.reason and not words_of(tag):
            self._pieces += [(f"{attribute(image, 'alt')} ", inner.language) for image in tag.find_all("img")]
        else:
            if here.row and BLOCK.fullmatch(name):
                cell = name in ("td", "th") and any(text.strip() for text, _ in self._pieces)
                while cell and not self._pieces[-1][0].strip():
                    self._pieces.pop()
                self._pieces.append((", " if cell else " ", None))
            self._children(tag, inner, depth)
        if block:
            self._flush(inner)

    def _within(self, tag: Tag, name: str, types: set[str], kinds: set[str], here: Here) -> Here:
        language = language_code(attribute(tag, "xml:lang") or attribute(tag, "lang")) or here.language
        key, note = self._key(attribute(tag, "id")), here.note
        if BLOCK.fullmatch(name) and (kinds & NOTES or (key and key in self._links.notes)):
            note = key or note or ""
        reason = here.reason
        if not reason and BLOCK.fullmatch(name) and note is None and self._options.front_matter == "skip":
            reason = next((FRONT_KINDS[kind] for kind in sorted(types) if kind in FRONT_KINDS), "")
        level = int(name[1]) if re.fullmatch("h[1-6]", name) else here.level
        table = not _is_layout(tag) if name == "table" else here.table
        row = here.row or (name == "tr" and here.table)
        return Here(language, reason, level, note, table, row, lines=here.lines or name == "pre")

    def _silence(self, tag: Tag, name: str, kinds: set[str], here: Here) -> str:
        """Return the reason why the whole element is left out, or "" if it is spoken."""
        if name == "a" and self._is_note_link(tag, kinds):
            target = self._key(attribute(tag, "href").partition("#")[2], attribute(tag, "href").partition("#")[0])
            if target not in self._links.seen and here.note is None:
                self._links.notes.add(target)
                self._refs.append(target)
            return "footnote reference"
        for kind in sorted(kinds & SILENT_KINDS.keys()):
            links = tag.find_all("a", href=True) if SILENT_KINDS[kind] == "footnote reference" else []
            for link in links:
                self._silence(link, "a", {"noteref"}, here)
            return SILENT_KINDS[kind]
        if name == "table" and self._options.tables == "skip" and here.table:
            return "table"
        if name == "pre" and self._options.code == "skip" and not kinds & {"poem", "poetry", "verse", "stanza"}:
            return "code"
        if name == "nav" and self._options.front_matter == "speak" and "toc" in kinds:
            return ""
        return SILENT_TAGS.get(name, "hidden" if tag.has_attr("hidden") and here.note is None else "")

    def _is_note_link(self, tag: Tag, kinds: set[str]) -> bool:
        if "#" not in attribute(tag, "href"):
            return False
        if kinds & NOTES or any(SILENT_KINDS.get(kind) == "footnote reference" for kind in kinds):
            return True
        text, parent = words_of(tag), tag.parent
        raised = (parent is not None and parent.name == "sup") or tag.find("sup") is not None
        return bool(_NOTE_SIGN.fullmatch(text)) and (raised or text[0] in "[［↩↑⏎^")

    def _image(self, tag: Tag) -> None:
        alt, after = attribute(tag, "alt"), tag.next_sibling
        if len(alt) == 1 and alt.isalpha() and isinstance(after, str) and after[:1].isalpha():
            self._pieces.append((alt, None))  # the picture is a word's first letter
        elif alt.strip():
            self._silent.append((one_line(alt), "image"))

    def _leave_out(self, tag: Tag, reason: str) -> None:
        for inner in tag.find_all(id=True):
            self._anchor(attribute(inner, "id"), Here())
        alts = [attribute(image, "alt") for image in tag.find_all("img")]
        self._silent += [(text, reason) for text in (words_of(tag),) if text]
        self._silent += [(one_line(alt), "image") for alt in alts if alt.strip()]

    def _anchor(self, name: str, here: Here) -> None:
        key = self._key(name)
        self._ids.append(key)
        self._links.seen.add(key)
        if key in self._links.notes and here.note is None and not any(text.strip() for text, _ in self._pieces):
            self._note = key  # the block that begins here is the footnote

    def _key(self, name: str, href: str = "") -> str:
        if not name:
            return ""
        folder = posixpath.dirname(self._base)
        return f"{posixpath.normpath(posixpath.join(folder, unquote(href))) if href else self._base}#{unquote(name)}"

    def _taken_ids(self) -> tuple[str, ...]:
        ids, self._ids = tuple(self._ids), []
        return ids

    def _flush(self, here: Here) -> None:
        """Make an item from the text gathered so far; `here` has its properties."""
        raw = "".join(text for text, _ in self._pieces)
        languages = {language for text, language in self._pieces if text.strip()}
        text, marks = tidy(raw, lambda: self._words)
        silent = [*self._silent, *((mark, "footnote reference") for mark in marks)]
        written = NOTE_START.match(raw.lstrip())
        note = here.note if here.note is not None else written[1] if written else self._note if text else None
        refs = (*self._refs, *(mark for mark in marks if not written))
        self._pieces, self._silent, self._refs = [], [], []
        if text:
            self._note = None
            language = languages.pop() if len(languages) == 1 else here.language
            item = Item(BlockKind.PARAGRAPH, text, "", language, 0, None, self._taken_ids(), note, refs)
            if here.reason and note is None:
                item = replace(item, kind=None, reason=here.reason)
            elif ORNAMENT.fullmatch(text):
                self.items.append(Item(BlockKind.SCENE_BREAK, ids=item.ids))
                item = replace(item, kind=None, reason="ornament", ids=())
            elif here.level:
                item = replace(item, kind=BlockKind.HEADING, level=here.level)
            self.items.append(item)
        elif refs or silent:
            self.items.append(Item(None, ids=self._taken_ids(), refs=refs))
        self.items += [Item(None, text, reason, note=None) for text, reason in silent]


def _is_layout(table: Tag) -> bool:
    """Return whether a table is used for layout only: its role says so, or it has one column."""
    if attribute(table, "role") in ("presentation", "none"):
        return True
    return all(len(row.find_all(["td", "th"], recursive=False)) < 2 for row in table.find_all("tr"))


_METADATA = re.compile(r"---[ \t]*\n((?:[^\n]*\n){0,200}?)(?:---|\.\.\.)[ \t]*(?:\n|$)")
_NOTE = re.compile(r"(?m)^(\[\^[^\]\s]{1,40}\]):")
"""Matches the start of a footnote, which is made a paragraph, because Markdown would read it as a link's definition."""


def read_markdown(text: str, label: str, options: BookOptions) -> Book:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise MissingDependency("Markdown needs markdown-it-py; type pip install 'vivavoce[books]'") from None
    # maxNesting is above `MAX_DEPTH`, so that `Page` raises an error: markdown-it would silently drop deep elements.
    reader = MarkdownIt("commonmark", {"html": True, "maxNesting": 2 * MAX_DEPTH}).enable(["table", "strikethrough"])
    head = _METADATA.match(text)
    pairs = re.findall(r"(?m)^(title|author|lang)(?:uage)?:(.+)$", head[1] if head else "")
    values, body = {name: value.strip(" \t\"'") for name, value in pairs}, text[head.end() :] if head else text
    book = read_html(reader.render(_NOTE.sub(r"\n\1\\:", body)), label, options)
    language = language_code(values.get("lang"))
    return replace(book, title=values.get("title", book.title), author=values.get("author", ""), language=language)
