"""Forms, with few parts, in strict UTF-8."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from vivavoce.errors import InvalidRequest

MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
_UTF_8 = (b"utf-8", b"utf8", b"us-ascii")


@dataclass(frozen=True)
class Form:
    """What came, in order: fields with their texts, and with the bytes of files."""

    texts: list[tuple[str, str]]
    files: list[tuple[str, bytes]]


def media_type(request: Request) -> str:
    """The type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_form(request: Request, max_fields: int) -> Form:
    """A form with so many texts, of a megabyte each at most, and one file.

    Raises:
        InvalidRequest: it is no form, has too many parts, or texts in another encoding than UTF-8.
        HTTPException: the same of a urlencoded form.
    """
    multipart = media_type(request) == MULTIPART
    parsed = await (_parsed(request, max_fields) if multipart else request.form(max_files=1, max_fields=max_fields))
    form = Form([], [])
    try:
        for name, value in parsed.multi_items():
            field = _utf_8(name, "a field's name") if multipart else name
            if isinstance(value, UploadFile):
                form.files.append((field, await value.read()))
            else:
                form.texts.append((field, _utf_8(value, field) if multipart else value))
    finally:
        await parsed.close()
    return form


async def _parsed(request: Request, max_fields: int) -> FormData:
    """The form, each byte of its texts being a letter of Latin-1."""
    content_type = request.headers["content-type"]
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.lower() not in _UTF_8:
        raise InvalidRequest(f"content-type: charset {charset[:40].decode('latin-1')!r} is not taken; send UTF-8")
    # The parser takes any of Python's codecs, some of quadratic time, and reads what is no UTF-8 as Latin-1.
    headers = Headers({"content-type": f"{content_type}; charset=latin-1"})

    async def whole() -> AsyncGenerator[bytes, None]:
        async for piece in request.stream():
            yield piece
        if not parser.ended:
            raise MultiPartException("its last boundary is missing")

    parser = _Parser(headers, whole(), max_files=1, max_fields=max_fields)
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"body: it is no form that can be read ({error.message.rstrip('.')})") from None


class _Parser(MultiPartParser):
    ended = False
    """The boundary after the last part has come: without it parts may be missing, or cut."""

    def on_end(self) -> None:
        self.ended = True


def _utf_8(letters: str, field: str) -> str:
    try:
        return letters.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field[:40]}: is no UTF-8 from byte {error.start} on; send UTF-8") from None
