"""The few bytes that redis tells of a voice before its content."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

_NONCE, _DIGEST = 32, 64
PREFIX_BYTES = _NONCE + _DIGEST
"""Before the name, which is the rest."""


@dataclass(frozen=True)
class Head:
    """nonce: new for every save; digest: SHA-256 of the content, which copies are compared with; both hexadecimal."""

    nonce: str
    digest: str
    name: str

    @classmethod
    def of(cls, name: str, data: bytes) -> Head:
        """The head of a new save."""
        return cls(uuid.uuid4().hex, digest(data), name)

    @classmethod
    def parse(cls, data: bytes) -> Head:
        """The head in what redis holds; one that somebody else wrote there is merely a head that fits nothing."""
        text = data.decode("utf-8", "replace")
        return cls(text[:_NONCE], text[_NONCE:PREFIX_BYTES], text[PREFIX_BYTES:])

    def encode(self) -> bytes:
        """As redis holds it."""
        return f"{self.nonce}{self.digest}{self.name}".encode()


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
