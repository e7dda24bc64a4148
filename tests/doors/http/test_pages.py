"""The pages' files and the headers they are served with."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from typing import cast

import httpx
import pytest
from fastapi import FastAPI

from vivavoce.doors.http import pages
from vivavoce.doors.http.desk import Desk

ASSETS = pages.load_assets()
MODULES = sorted(name for name in ASSETS if name.endswith(".js"))


def get(path: str, method: str = "GET", **headers: str) -> httpx.Response:
    app = FastAPI(redirect_slashes=False)  # as the whole app has it
    app.include_router(pages.router(cast(Desk, None)))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.send(httpx.Request(method, "http://test" + path, headers=sent))

    return asyncio.run(ask())


class Page(HTMLParser):
    """What a page refers to, and what of it the policy would forbid."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.fields: set[str] = set()
        self.forbidden: list[str] = []
        self.feed(ASSETS[name].content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]
        self.forbidden += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.forbidden.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "label" and given.get("for"):
            self.labelled.add(str(given["for"]))
        if tag in ("select", "textarea") or (tag == "input" and given.get("type") not in ("checkbox", "file")):
            self.fields.add(str(given["id"]))


@pytest.mark.parametrize("path", pages.PAGES)
def test_pages_are_served_under_a_strict_policy(path: str) -> None:
    answer = get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "script-src" not in policy, "scripts come from the server alone"


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("speak.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ],
)
def test_assets_have_their_types(name: str, content_type: str) -> None:
    answer = get(f"/web/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == content_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == ASSETS[name].content


def test_what_is_known_is_not_sent_again() -> None:
    first = get("/web/style.css")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, f'"other", W/{tag}', "*"):
        again = get("/web/style.css", if_none_match=known)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert get("/web/style.css", if_none_match='"other"').status_code == 200
    assert get("/", if_none_match=get("/").headers["etag"]).status_code == 304


def test_tags_differ_where_contents_do() -> None:
    assert len({asset.tag for asset in ASSETS.values()}) == len(ASSETS)


def test_head_answers_like_get() -> None:
    assert get("/", "HEAD").headers["content-length"] == str(len(ASSETS["speak.html"].content))


@pytest.mark.parametrize(
    "path",
    [
        "/web/..%2fpages.py",
        "/web/../pages.py",
        "/web/%2e%2e/pages.py",
        "/web/..%5cpages.py",
        "/web//etc/passwd",
        "/web/",
        "/web/missing.js",
        "/web/speak.html",
        "/web/style.css%00",
        "/web/style.css/",
    ],
)
def test_nothing_but_the_listed_files_is_served(path: str) -> None:
    assert get(path).status_code == 404


@pytest.mark.parametrize("name", sorted(pages.PAGES.values()))
def test_pages_refer_to_what_is_there(name: str) -> None:
    page = Page(name)
    assert page.forbidden == []
    assert len(page.ids) == len(set(page.ids))
    assert page.fields <= page.labelled, "every field has a label"
    for address in page.addresses:
        if address.startswith("web/"):
            assert address.removeprefix("web/") in ASSETS
        else:
            assert address in ("./", "voices", "status", "metrics", "#main")


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_short_and_import_their_neighbours(name: str) -> None:
    text = ASSETS[name].content.decode()
    assert len(text.splitlines()) < 300
    imported = re.findall(r'(?:from|import\() ?"\./([^"]+)"', text)
    assert set(imported) <= set(MODULES)
    assert "innerHTML" not in text


def test_nothing_comes_from_elsewhere() -> None:
    for name, asset in ASSETS.items():
        addresses = re.findall(rb"(?:https?:)?//[a-z0-9-]+\.[a-z]+[^\s\"']*", asset.content)
        assert set(addresses) <= {b"http://www.w3.org/2000/svg"}, name


def test_all_of_it_is_small() -> None:
    assert sum(len(asset.content) for asset in ASSETS.values()) < 100 * 1024
