"""Hooks of the site (mkdocs.yml): pages from outside of docs/, links that lead out of it, and the reference of HTTP.

The pages are written to be read in the repository. Here their links are turned to what the site has.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "begin.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "THIRD_PARTY.md": "third-party.md",
    "deploy/triton/README.md": "triton-image.md",
    "src/vivavoce/data/mini/README.md": "mini.md",
}
"""Files of the repository that are pages under another name."""
HTTP_REFERENCES = {
    "http-api.md": ("build_app", "http://127.0.0.1:8880"),
    "http-api-cosyvoice.md": ("build_legacy_app", "http://127.0.0.1:50000"),
}
"""Pages that are made of what a server says of itself at /openapi.json: which app, and its usual address."""
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:)([^)#\s]*)(#[^)]*)?\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from elsewhere, the references that are generated, and pictures that lie outside of docs/."""
    from mkdocs.structure.files import File

    files.remove(files.get_file_from_path("README.md"))
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, content in http_references().items():
        files.append(File.generated(config, page, content=content))
    for picture in {path for page in (ROOT / "docs").glob("*.md") for path in pictures_elsewhere(page)}:
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links between files of the repository to links between pages; what the site lacks is named by its path."""
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def turned(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        here = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(here):
            return f"{picture}[{text}]({here}{anchor})"
        if config.repo_url:
            return f"{picture}[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return text if path in text else f"{text} (`{path}` in the repository)"

    def site_prose(prose: str) -> str:
        # Within code in a table GitHub wants `\|` for a bar, Python's Markdown shows the stroke.
        return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), LINK.sub(turned, prose))

    return outside_fences(site_prose, markdown)


def outside_fences(change: Callable[[str], str], markdown: str) -> str:
    """Change the prose between blocks of code."""
    parts, done = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[done : fence.start()]), fence[0]]
        done = fence.end()
    return "".join([*parts, change(markdown[done:])])


def pictures_elsewhere(page: Path) -> list[str]:
    """Paths in the repository of a page's pictures that lie outside of docs/."""
    return re.findall(r"!\[[^\]]*\]\(\.\./([^)]+)\)", page.read_text(encoding="utf-8"))


def http_references() -> dict[str, str]:
    """The pages that a server has at /docs, at its main port and at that of CosyVoice's own routes."""
    import sys

    sys.path.insert(0, str(ROOT))
    from tests.server.http.serving import make_state
    from vivavoce.server.http import app
    from vivavoce.server.http.reference_page import reference_page

    return {
        page: as_markdown(reference_page(getattr(app, build)(make_state()).openapi(), address))
        for page, (build, address) in HTTP_REFERENCES.items()
    }


def as_markdown(html: str) -> str:
    """The reference as a page of the site: its routes are headings that the contents list."""
    html = html[html.index("<h1>") : html.index("</main>")]
    html = re.sub(r"<h(\d)>(?:<code>)?(.*?)(?:</code>)?</h\d>", lambda one: f"\n{'#' * int(one[1])} {one[2]}\n", html)
    html = re.sub(r"</?section[^>]*>", "", html)
    return re.sub(r' in <a href="openapi.json">openapi.json</a>', " at <code>/openapi.json</code> of a server", html)
