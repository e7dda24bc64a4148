"""The page at /docs: shows /openapi.json to people, without scripts or files from other servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title} · reference</title>
  <link rel="icon" href="web/icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="web/style.css">
</head><body><main>
<h1>{title} {version}</h1>
<p>{about} Programs read the same in <a href="openapi.json">openapi.json</a>.</p>
"""
_LIMITS = {"default": "default", "minimum": "from", "maximum": "to", "maxLength": "characters at most"}


def reference_page(description: dict[str, Any], address: str, *, has_pages: bool = False) -> str:
    """Return the page as HTML. description: the OpenAPI document; has_pages: add a link to the start page."""
    info = description["info"]
    head = {"title": info["title"], "version": info["version"], "about": info.get("description", "")}
    parts = [_HEAD.format(**{name: escape(text) for name, text in head.items()})]
    if has_pages:
        parts.append('<p><a href="./">Back to the start page</a></p>\n')
    if description.get("security"):
        parts.append("<p>It needs a key: <code>authorization: Bearer KEY</code> or <code>x-api-key: KEY</code>.</p>\n")
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            parts += _operation(method.upper(), path, operation, address)
    return "".join([*parts, "</main>\n</body>\n</html>\n"])


def _operation(method: str, path: str, operation: dict[str, Any], address: str) -> Iterator[str]:
    yield f'<section class="card">\n<h2><code>{method} {escape(path)}</code></h2>\n'
    yield f"<p>{escape(operation.get('summary', ''))}</p>\n"
    for given in operation.get("parameters", ()):
        where = f"{given['in']}{', required' if given.get('required') else ''}"
        yield _field(given["name"], where, {"description": given.get("description", ""), **given["schema"]})
    contents = operation.get("requestBody", {}).get("content", {})
    if contents:
        yield f"<p>Body: {escape(', '.join(contents))}</p>\n"
    bodies = [content["schema"] for content in contents.values()]
    needed = {name for body in bodies for name in body.get("required", ())}
    fields = {name: schema for body in bodies for name, schema in body.get("properties", {}).items()}
    for name, schema in fields.items():
        yield _field(name, "required" if name in needed else "", schema)
    for example in [one for body in bodies for one in body.get("examples", ())][:1]:
        data = json.dumps(example, ensure_ascii=False)
        line = f"curl {address}{path} -H 'content-type: application/json' -d '{data}' -o answer"
        yield f"<p><code>{escape(line)}</code></p>\n"
    yield "<ul>\n"
    for status, answer in operation["responses"].items():
        media = ", ".join(kind for kind in answer.get("content", ()) if status == "200")
        yield f"<li>{status}: {escape(answer['description'])} <code>{escape(media)}</code></li>\n"
    yield "</ul>\n</section>\n"


def _field(name: str, where: str, schema: dict[str, Any]) -> str:
    kinds = [one.get("type", "object") for one in schema.get("anyOf", ())] or [schema.get("type", "")]
    parts = (schema, *schema.get("anyOf", ()))
    choices = [str(one) for part in parts for one in part.get("enum", ()) if one is not None]
    limits = [f"{words} {schema[key]}" for key, words in _LIMITS.items() if schema.get(key) not in (None, "")]
    about = ", ".join(filter(None, [" or ".join(kind for kind in kinds if kind != "null"), where, *limits]))
    listed = f" One of {', '.join(choices)}." if choices else ""
    text = f"{schema.get('description', '')}{listed}".strip()
    return f'<p><code>{escape(name)}</code> <span class="hint">{escape(about)}</span><br>{escape(text)}</p>\n'
