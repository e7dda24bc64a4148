"""HTTP by hand, as little of it as attackers, their victims and broken requests need."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

FORM = "multipart/form-data; boundary=x"


def request(
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    kind: str = "application/json",
    key: str = "",
    length: int = -1,
) -> bytes:
    """A request after which its connection is closed; length: what it promises, if not what it has."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close"]
    lines += (
        [f"content-type: {kind}", f"content-length: {len(body) if length < 0 else length}"] if body or length else []
    )
    lines += [f"authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, "", ""]).encode() + body


def speech(text: str, key: str = "", **fields: Any) -> bytes:
    """A request for 16-bit samples."""
    body = json.dumps({"input": text, "response_format": "pcm", **fields}).encode()
    return request("/v1/audio/speech", body, key=key)


def form(fields: Mapping[str, str], file: str, content: bytes) -> bytes:
    """The body of a form with a file; its type is `FORM`."""
    parts = [f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()]
    head = f'--x\r\ncontent-disposition: form-data; name="{file}"; filename="a.wav"\r\n\r\n'
    return ("".join(parts) + head).encode() + content + b"\r\n--x--\r\n"


@asynccontextmanager
async def asked(
    port: int, content: bytes, sender: str = "127.0.0.1"
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """A connection on which this was sent; it is dropped afterwards. sender: the client's own address."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(sender, 0))
    try:
        writer.write(content)
        yield reader, writer
    finally:
        writer.transport.abort()


async def status(reader: asyncio.StreamReader) -> int:
    """That of the answer whose head is read; 0: the connection ended before."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0
    return int(head.split(maxsplit=2)[1])


async def chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """The pieces of a chunked body to its end; raises where it is cut."""
    while size := int(await reader.readline() or b"cut", 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def answer(port: int, content: bytes, sender: str = "127.0.0.1") -> tuple[int, bytes]:
    """Status and body of what a request is answered with; 0: nothing."""
    async with asked(port, content, sender) as (reader, _):
        try:
            found = await status(reader)
            return found, await reader.read()
        except ConnectionError:
            return 0, b""
