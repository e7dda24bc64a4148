"""Reads EPUB 2 and 3. The spine gives the order of the documents, and the table of contents gives the chapters."""

from __future__ import annotations

import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from vivavoce.errors import InvalidRequest
from vivavoce_books.book import MAX_BOOK_BYTES, BlockKind, Book, BookOptions, Cover
from vivavoce_books.chapters import Item, combined_title, divide, one_line, start_at_headings
from vivavoce_books.html import FRONT_KINDS, Links, Page, attribute, parse, words_of
from vivavoce_books.text import decode, language_code

MAX_ENTRIES = 10_000
MAX_DIRECTORY_BYTES = 4_000_000
DOCUMENTS = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document")
FONT_SCRAMBLING = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
LOCKS = ("META-INF/rights.xml", "META-INF/sinf.xml", "META-INF/license.lcpl")
_REPAIR = "repair it, for example with Calibre"


class _Archive:
    """The files in an EPUB. At most `MAX_BOOK_BYTES` are unpacked from all files together."""

    def __init__(self, path: Path) -> None:
        self.label = repr(path.name)
        _check_directory(path, self.label)
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise InvalidRequest(f"book: {self.label} is a damaged EPUB ({error}); download it again") from None
        self._names, self._left = frozenset(self._zip.namelist()), MAX_BOOK_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str) -> bytes:
        if name not in self._names:
            raise InvalidRequest(f"book: {self.label} lacks {name!r}, which an EPUB of its kind has; {_REPAIR}")
        try:
            with self._zip.open(name) as opened:
                content = opened.read(self._left + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
            raise InvalidRequest(f"book: {self.label} has a damaged file {name!r} ({error}); {_REPAIR}") from None
        self._left -= len(content)
        if self._left < 0:
            raise InvalidRequest(
                f"book: {self.label} inflates to more than the limit of {MAX_BOOK_BYTES} bytes (at {name!r}); split it"
            )
        return content

    def text(self, name: str) -> str:
        return decode(self.read(name), f"{name!r} in {self.label}", markup=True)

    def xml(self, name: str) -> ElementTree.Element:
        text = self.text(name)
        if "<!ENTITY" in text:
            raise InvalidRequest(
                f"book: {name!r} in {self.label} defines entities (<!ENTITY), which are not read; write their text "
                "instead"
            )
        try:
            return ElementTree.fromstring(text)
        except (ElementTree.ParseError, ValueError) as error:
            raise InvalidRequest(f"book: {name!r} in {self.label} is broken XML ({error}); {_REPAIR}") from None

    def within(self, folder: str, href: str) -> str:
        """Resolve a link in a file of `folder` to a name in the archive. InvalidRequest: it leads outside."""
        name = posixpath.normpath(posixpath.join(folder, unquote(href)))
        if name.startswith(("../", "/")) or name == "..":
            raise InvalidRequest(f"book: {self.label} names a file outside itself ({href[:80]!r}); {_REPAIR}")
        return name


def _check_directory(path: Path, label: str) -> None:
    """Check the size of the zip directory before the directory is read (PKWARE's APPNOTE.TXT, section 4.3.16)."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65_557))
        tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 22:
        raise InvalidRequest(f"book: {label} is a damaged EPUB (its end is missing); download it again")
    entries, size = struct.unpack("<HL", tail[at + 10 : at + 16])
    if entries > MAX_ENTRIES or size > MAX_DIRECTORY_BYTES or tail[max(0, at - 20) : at].startswith(b"PK\6\7"):
        raise InvalidRequest(
            f"book: {label} has {entries} files in a directory of {size} bytes, beyond the limits of {MAX_ENTRIES}"
            f" and {MAX_DIRECTORY_BYTES}; pack it anew, for example with Calibre"
        )


@dataclass(frozen=True)
class _Package:
    """The document that lists the book's files. manifest: id → item; folder: the document's folder, for its hrefs."""

    archive: _Archive
    root: ElementTree.Element
    manifest: dict[str, ElementTree.Element]
    folder: str

    def path(self, item: ElementTree.Element) -> str:
        return self.archive.within(self.folder, item.get("href", ""))

    def item_with(self, name: str, word: str) -> ElementTree.Element | None:
        return next((item for item in self.manifest.values() if word in item.get(name, "").split()), None)


def _words(element: ElementTree.Element | None) -> str:
    return "" if element is None else one_line("".join(element.itertext()))


def read_epub(path: Path, options: BookOptions) -> Book:
    archive = _Archive(path)
    if "META-INF/container.xml" not in archive:
        raise InvalidRequest(
            f"book: {archive.label} is a zip archive, but no EPUB (META-INF/container.xml is missing); give an EPUB"
        )
    _check_locks(archive)
    named = archive.xml("META-INF/container.xml").find(".//{*}rootfile")
    if named is None:
        raise InvalidRequest(f"book: {archive.label} names no package in META-INF/container.xml; {_REPAIR}")
    opf = archive.within("", named.get("full-path", ""))
    root = archive.xml(opf)
    manifest = {item.get("id", ""): item for item in root.iterfind(".//{*}item")}
    package = _Package(archive, root, manifest, posixpath.dirname(opf))
    entries, fronts = _contents(package)
    items = _items(package, options, fronts)
    if not items:
        raise InvalidRequest(f"book: {archive.label} has an empty spine: nothing to read; {_REPAIR}")
    title, author = _words(root.find(".//{*}title")), ", ".join(map(_words, root.iterfind(".//{*}creator")))
    language = language_code(_words(root.find(".//{*}language")))
    return Book(title, author, language, divide(_with_titles(items, entries), options), _cover(package))


def _check_locks(archive: _Archive) -> None:
    used: set[str] = set()
    if "META-INF/encryption.xml" in archive:
        methods = archive.xml("META-INF/encryption.xml").iterfind(".//{*}EncryptionMethod")
        used = {method.get("Algorithm", "") for method in methods} - set(FONT_SCRAMBLING)
    lock = next((name for name in LOCKS if name in archive), "META-INF/encryption.xml" if used else "")
    if lock:
        raise InvalidRequest(f"book: {archive.label} is encrypted (DRM, {lock}); give a copy without copy protection")


def _contents(package: _Package) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the table of contents, as titles and places such as "text/one.xhtml#part2", and for documents that are
    front matter: path → reason.
    """
    archive, entries = package.archive, list[tuple[str, str]]()
    marked = [
        (package.folder, one.get("type", ""), one.get("href", "")) for one in package.root.iterfind(".//{*}reference")
    ]
    nav = package.item_with("properties", "nav")
    if nav is not None:
        name = package.path(nav)
        folder, soup = posixpath.dirname(name), parse(archive.text(name), f"{name!r} in {archive.label}")
        lists = {attribute(found, "epub:type") or attribute(found, "role"): found for found in soup.find_all("nav")}
        for link in lists["landmarks"].find_all("a") if "landmarks" in lists else ():
            marked.append((folder, attribute(link, "epub:type"), attribute(link, "href")))
        toc = lists.get("toc") or lists.get("doc-toc")
        for link in toc.find_all("a") if toc else ():
            place = archive.within(folder, attribute(link, "href"))
            depth = sum(parent.name == "ol" for parent in link.parents)
            if depth <= 2 or all(_path(place) != _path(other) for _, other in entries):
                entries.append((words_of(link), place))
    ncx = package.item_with("media-type", "application/x-dtbncx+xml")
    if not entries and ncx is not None and (name := package.path(ncx)) in archive:
        entries = list(_points(archive, archive.xml(name), posixpath.dirname(name)))
    fronts = {}
    for folder, kinds, href in marked:
        reason = next((FRONT_KINDS[kind] for kind in kinds.split() if kind in FRONT_KINDS), None)
        if reason and href and "#" not in href:
            fronts[archive.within(folder, href)] = reason
    return entries, fronts


def _path(place: str) -> str:
    return place.partition("#")[0]


def _points(archive: _Archive, ncx: ElementTree.Element, folder: str) -> Iterator[tuple[str, str]]:
    """Yield titles and places of the two upper levels of an EPUB 2's table of contents."""
    for top in ncx.iterfind("{*}navMap/{*}navPoint"):
        for point in (top, *top.iterfind("{*}navPoint")):
            content = point.find("{*}content")
            source = "" if content is None else content.get("src", "")
            yield _words(point.find("{*}navLabel")), archive.within(folder, source)


def _items(package: _Package, options: BookOptions, fronts: dict[str, str]) -> list[Item]:
    """Return the items of all documents in the spine's order; a document's first item has its path as an anchor."""
    items: list[Item] = []
    links, spine, archive = Links(), package.root.findall(".//{*}itemref"), package.archive
    for reference in spine:
        item = package.manifest.get(reference.get("idref", ""))
        if item is None:
            raise InvalidRequest(
                f"book: {archive.label} has {reference.get('idref', '')!r} in its spine, but not in its manifest;"
                f" {_REPAIR}"
            )
        name, label = package.path(item), f"{item.get('href', '')!r} in {archive.label}"
        if item.get("media-type") not in DOCUMENTS:
            items.append(Item(None, name, "image" if item.get("media-type", "").startswith("image/") else "media"))
            continue
        reason = fronts.get(name, "") if options.front_matter == "skip" and len(spine) > 1 else ""
        reason = reason or ("outside the reading order" if reference.get("linear") == "no" else "")
        page = Page(parse(archive.text(name), label), label, options, base=name, reason=reason, links=links)
        items += [Item(None, ids=(name,)), *page.items]
    return items


def _with_titles(items: list[Item], entries: list[tuple[str, str]]) -> list[Item]:
    """Begin chapters at the places in the table of contents, and at documents that begin with a heading."""
    places = {anchor: at for at, item in reversed(list(enumerate(items))) for anchor in item.ids}
    titles: dict[int, str] = {}
    for title, place in entries:
        at = places.get(place, places.get(_path(place)))
        if at is not None:
            titles[at] = combined_title(titles[at], title) if at in titles else title
    if len(titles) < 2:
        return start_at_headings(items)
    for at, item in enumerate(items):
        if _begins_document(item) and at not in titles:
            head = next((i for i in range(at + 1, len(items)) if items[i].kind or _begins_document(items[i])), at)
            if items[head].kind is BlockKind.HEADING and items[head].level <= 2 and head not in titles:
                titles[at] = one_line(items[head].text)
    return [replace(item, title=titles.get(at)) for at, item in enumerate(items)]


def _begins_document(item: Item) -> bool:
    return bool(item.ids) and "#" not in item.ids[0]


def _cover(package: _Package) -> Cover | None:
    metas = package.root.iterfind(".//{*}meta")
    named = next((meta.get("content", "") for meta in metas if meta.get("name") == "cover"), "")
    found = package.item_with("properties", "cover-image")
    found = found if found is not None else package.manifest.get(named)
    if found is None or not re.fullmatch(r"image/[\w.+-]+", found.get("media-type", "")):
        return None
    name = package.path(found)
    return Cover(package.archive.read(name), found.get("media-type", "")) if name in package.archive else None
