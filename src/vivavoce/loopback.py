"""Addresses of this machine."""

from __future__ import annotations

import re
from ipaddress import ip_address


def is_local(address: str) -> bool:
    """Whether an address host:port, with or without a scheme, is on this machine."""
    found = re.fullmatch(r"(?:\w+://)?(?:\[(.*?)\]|([^:/]*))(?:[:/].*)?", address)
    host = (found[1] or found[2]) if found else ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
