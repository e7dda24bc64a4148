"""Bodies of requests, read within limits: JSON, multipart forms, urlencoded forms and queries."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import AliasChoices, BaseModel, BeforeValidator, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import HTTPConnection, Request

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.text.text_input import readable
from vivavoce.server.http.app_state import state_of
from vivavoce.server.http.errors import invalid, shown

MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
SMALL_BYTES = 1 << 16
"""Bytes or characters of JSON that are parsed in the event loop; longer JSON is parsed in a thread."""
MAX_SEPARATORS = 1 << 17
"""Limit of commas and brackets in JSON, which bounds its number of values; any usual text has far fewer."""
MAX_FORM_FIELDS = 40
_MOST_NAMED = 10
_UTF_8 = (b"utf-8", b"utf8", b"us-ascii")
_MAX_FIELD_BYTES = 1 << 20
"""Most bytes of an encoded field in a urlencoded form; a text of a multipart form has the same limit."""


def _any_half(text: Any, check: Callable[[str], str]) -> str:
    check(readable(text) if isinstance(text, str) else text)
    return text


AnyText = Annotated[str, WrapValidator(_any_half)]
"""A text that may contain lone UTF-16 surrogates, since a client may cut its text inside a surrogate pair."""


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):  # Pydantic would convert true to 1 and false to 0
        raise PydanticCustomError("number", "input should be a number")
    return value


NO_SWITCH = BeforeValidator(_no_switch)
Whole = Annotated[int, NO_SWITCH]
Number = Annotated[float, NO_SWITCH]
"""An integer (`Whole`) or a float, also as a string; true and false are refused."""

_Result = TypeVar("_Result")
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Form:
    """The parts of a form in order: fields with their texts, and fields with the bytes of files.

    names: the file names that the client sent, by field; they may be any text.
    """

    texts: list[tuple[str, str]] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def off_loop(size: int, work: Callable[[], _Result]) -> _Result:
    """Call `work` on a text of `size` bytes; in a thread if it would block the event loop for too long."""
    return work() if size <= SMALL_BYTES else await asyncio.to_thread(work)


def check_encoding(request: Request) -> None:
    """Raise InvalidRequest if the headers say that the body is compressed."""
    packing = request.headers.get("content-encoding", "").strip()
    if packing.lower() not in ("", "identity"):
        raise InvalidRequest(
            f"content-encoding: {packing[:40]!r} is not supported; send the body uncompressed, without this header"
        )


async def read_json(request: Request, model: type[_Model]) -> _Model:
    check_encoding(request)
    # `request.body()` would keep the bytes until the answer ends, which takes minutes for speech.
    body = b"".join([piece async for piece in request.stream()])

    def parse() -> _Model:
        needed = next(name for name, field in model.model_fields.items() if field.is_required())
        values = parse_json(body, "body", remedy := f"send an object with the field {needed}")
        if not isinstance(values, dict):
            raise InvalidRequest(f"body: {shown(values)!r} is not an object; {remedy}")
        return validated(model, without_ignored(request, model, values))

    return await off_loop(len(body), parse)


def parse_json(text: str | bytes, field: str, remedy: str = "send an object") -> Any:
    """Parse JSON, which may contain lone surrogates. InvalidRequest: it is malformed, or has a name twice."""
    check_separators(text, field)
    try:
        return json.loads(text, object_pairs_hook=_named_once)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field}: is not UTF-8 from byte {error.start} on; send UTF-8") from None
    except json.JSONDecodeError as error:
        place = f" (line {error.lineno}, column {error.colno})"
        raise InvalidRequest(f"{field}: is not JSON{place}; {remedy}") from None
    except RecursionError:
        raise InvalidRequest(f"{field}: is nested too deeply; {remedy}") from None
    except ValueError:
        most = sys.get_int_max_str_digits()
        raise InvalidRequest(f"{field}: holds a number of more than {most} digits; send a shorter one") from None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        _check_once(pairs)
    return found


def check_separators(text: str | bytes, field: str) -> None:
    """Refuse JSON with too many values before it is parsed: values need far more memory and time than their bytes."""
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    count = sum(map(encoded.count, (b",", b"[", b"{")))
    if count > MAX_SEPARATORS:
        raise InvalidRequest(
            f"{field}: holds {count} commas and brackets, more than {MAX_SEPARATORS}; send fewer values"
        )


def validated(model: type[_Model], fields: dict[str, Any], where: str = "body") -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid(list(error.errors(include_url=False, include_context=False)), where) from None


def without_ignored(request: Request, model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Return `values`; if settings or model ignore unknown fields, without these, which x-warning then names."""
    known, refuses = known_names(model), state_of(request).settings.requests.unknown_fields == "refuse"
    if values.keys() <= known or (refuses and model.model_config.get("extra") == "forbid"):
        return values
    _note_ignored(request, f"fields: {_listed(name for name in values if name not in known)} are unknown")
    return {name: value for name, value in values.items() if name in known}


def check_query(
    connection: HTTPConnection, fields: Set[str], place: str = "body", known: Set[str] = frozenset()
) -> None:
    """Name the unused parameters of a query, such as a proxy's api-version, in the answer's x-warning.

    fields: names that are read only in `place`; known: names that are read in the query. InvalidRequest: a name of
    `fields` is in the query, where it has no effect, and the settings refuse unknown fields.
    """
    given = connection.query_params.multi_items()
    _check_once([pair for pair in given if pair[0] in known])
    unknown = [name for name in dict(given) if name not in known]
    misplaced = [name for name in unknown if name.partition("[")[0] in fields]  # PHP writes voice[id]
    if misplaced and state_of(connection).settings.requests.unknown_fields == "refuse":
        raise InvalidRequest(f"query: {_listed(misplaced)} are not read here; send fields in the {place}")
    if unknown:
        _note_ignored(connection, f"query: {_listed(unknown)} are not read here")


def _listed(names: Iterable[str]) -> str:
    found = [ascii(name[:40])[1:-1] for name in names]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"{', '.join(found[:_MOST_NAMED])}{more}"


def _note_ignored(connection: HTTPConnection, problem: str) -> None:
    earlier = getattr(connection.state, "ignored", None)
    connection.state.ignored = "; ".join(filter(None, (earlier, f"{problem} and were ignored")))


def check_twins(model: type[BaseModel], given: Collection[str]) -> None:
    """Raise InvalidRequest if two of the given names stand for the same field."""
    for declared in model.model_fields.values():
        alias = declared.validation_alias
        named = [str(name) for name in alias.choices if name in given] if isinstance(alias, AliasChoices) else []
        if len(named) > 1:
            raise InvalidRequest(f"{named[0]}: {' and '.join(named)} are names of the same field; send one of them")


@cache
def known_names(model: type[BaseModel]) -> Set[str]:
    """Return the names of a model's fields, and their aliases."""
    aliases = [field.validation_alias for field in model.model_fields.values()]
    others = {str(name) for one in aliases if isinstance(one, AliasChoices) for name in one.choices}
    return model.model_fields.keys() | others


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a model, with definitions in place of references."""
    schema = model.model_json_schema()
    return dict(_inlined(schema, schema.pop("$defs", {})))


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inlined(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        rest = {key: one for key, one in value.items() if key != "$ref"}
        return {**_inlined(definitions[value["$ref"].rpartition("/")[2]], definitions), **rest}
    return {key: _inlined(one, definitions) for key, one in value.items()}


async def read_form(request: Request, max_fields: int) -> Form:
    """Read a UTF-8 form of at most one file and `max_fields` texts of 1 MB. Other content types give an empty form.

    InvalidRequest: the form is malformed, or has a field twice.
    """
    check_encoding(request)
    media = media_type(request)
    if media not in (MULTIPART, URLENCODED):
        return Form()
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")
    if charset.lower() not in _UTF_8:
        raise InvalidRequest(f"content-type: charset {charset[:40].decode('latin-1')!r} is not taken; send UTF-8")
    if media == URLENCODED:
        body = b"".join([piece async for piece in request.stream()])
        return Form(await off_loop(len(body), lambda: url_fields(body, max_fields)))
    parsed = await _parse_multipart(request, max_fields)
    form = Form()
    try:
        for encoded_name, value in parsed.multi_items():
            name = _utf_8(encoded_name.encode("latin-1"), "a field's name")
            if isinstance(value, UploadFile):
                form.files.append((name, await value.read()))
                form.names[name] = value.filename or ""
            else:
                form.texts.append((name, _utf_8(value.encode("latin-1"), name, "send UTF-8; a file needs a name")))
    finally:
        await parsed.close()
    _check_once([*form.texts, *form.files])
    return form


def url_fields(encoded: bytes, max_fields: int = MAX_FORM_FIELDS) -> list[tuple[str, str]]:
    """Parse the fields of a urlencoded form or a query.

    InvalidRequest: for example, a field comes twice or is not UTF-8 (Starlette's parser would replace such bytes).
    """
    if encoded.count(b"&") >= max_fields:
        raise InvalidRequest(f"form: has more than {max_fields} fields; send fewer")
    fields = []
    for piece in filter(None, encoded.split(b"&")):
        if len(piece) > _MAX_FIELD_BYTES:  # checked before decoding, which needs far more memory
            raise InvalidRequest(f"form: a field has {len(piece)} bytes, more than {_MAX_FIELD_BYTES}; send fewer")
        encoded_name, _, value = (unquote_to_bytes(part) for part in piece.replace(b"+", b" ").partition(b"="))
        name = _utf_8(encoded_name, "a field's name")
        fields.append((name, _utf_8(value, name)))
    _check_once(fields)
    return fields


def _check_once(fields: Collection[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in fields:
        if name in seen:
            printed = name if name.isidentifier() and len(name) <= 40 else f"{name[:40]!r}"
            raise InvalidRequest(f"{printed}: comes twice; send it once")
        seen.add(name)


class _Parser(MultiPartParser):
    spool_max_size = 0
    has_ended = False
    """Whether the closing boundary has come. Starlette accepts a form without it, though parts may be missing."""

    def on_end(self) -> None:
        self.has_ended = True


async def _parse_multipart(request: Request, max_fields: int) -> FormData:
    """Parse a form. Its texts stay undecoded: they are Latin-1 text in which each character stands for one byte."""
    # The parser would accept all codecs of Python, even quadratic ones, and would read malformed UTF-8 as Latin-1.
    headers = Headers({"content-type": f"{request.headers['content-type']}; charset=latin-1"})

    async def whole_body() -> AsyncGenerator[bytes, None]:
        async for piece in request.stream():
            yield piece
        if not parser.has_ended:
            raise MultiPartException("the last boundary is missing")

    parser = _Parser(headers, whole_body(), max_files=1, max_fields=max_fields)
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"body: it is not a readable form ({error.message.rstrip('.')})") from None


def _utf_8(encoded: bytes, field: str, remedy: str = "send UTF-8") -> str:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        name = field[:40] if field.isprintable() else "a field"
        raise InvalidRequest(f"{name}: is not UTF-8 from byte {error.start} on; {remedy}") from None
