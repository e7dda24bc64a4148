"""The site is built without a warning: its links and anchors lead somewhere, and its references name all there is."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from shown import ROOT

import vivavoce
from tests.server.http.serving import make_state
from vivavoce import errors
from vivavoce.server.http.app import build_app, build_legacy_app

pytestmark = pytest.mark.process

NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]


def pages_of(part: Any) -> list[str]:
    """The pages of a navigation, in order."""
    if isinstance(part, str):
        return [part]
    return [page for entry in part for inside in entry.values() for page in pages_of(inside)]


def hooks() -> Any:
    """The module docs/site.py."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_names_every_page_once() -> None:
    named, site = pages_of(yaml.safe_load(NAVIGATION)), hooks()
    written = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    written |= {*site.PAGES.values(), *site.HTTP_REFERENCES}
    assert len(named) == len(set(named))
    assert set(named) == written, "name each page of docs/ in mkdocs.yml"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's folder."""
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_the_reference_of_python_has_every_public_name(built: Path) -> None:
    page = (built / "api.html").read_text(encoding="utf-8")
    headings = set(re.findall(r'<h\d id="([^"]+)"', page))
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and name != "ClassVar"}
    assert {f"vivavoce.{name}" for name in vivavoce.__all__ if name != "VivavoceError"} <= headings
    assert {f"vivavoce.errors.{name}" for name in raised} <= headings
    assert {"vivavoce_dialects.compat.AutoModel", "vivavoce.Vivavoce.speak"} <= headings


@pytest.mark.parametrize(("page", "build"), [("http-api", build_app), ("http-api-cosyvoice", build_legacy_app)])
def test_the_reference_of_http_has_every_route(built: Path, page: str, build: Any) -> None:
    text = unescape((built / f"{page}.html").read_text(encoding="utf-8"))
    told = set(re.findall(r'<h2 id="[^"]+">([^<]+)<', text))
    paths = build(make_state()).openapi()["paths"]
    assert told == {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def test_pages_from_elsewhere_are_there_and_nothing_is_fetched(built: Path) -> None:
    home = (built / "index.html").read_text(encoding="utf-8")
    assert 'href="voices.html"' in home
    assert 'src="images/web-page.png"' in home
    assert (built / "images" / "web-page.png").is_file()
    assert (built / "benchmarks" / "results" / "gpu" / "h200.png").is_file()
    assert 'href="troubleshooting.html"' in (built / "begin.html").read_text(encoding="utf-8")
    for page in built.glob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]+)"', page.read_text(encoding="utf-8"))
        assert not [one for one in loaded if one.startswith(("http:", "https:", "//"))], page.name
