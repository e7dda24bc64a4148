"""What an owner's namespace is called where names have rules."""

from __future__ import annotations

import hashlib

PUBLIC = ""
"""Nobody's own: the voices that everybody sees."""


def namespace_id(owner: str) -> str:
    """64 hexadecimal digits: a name for a folder or a key that no owner's string can bend, and that tells nothing.

    Raises nothing: halves of surrogate pairs have bytes here, too.
    """
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()
