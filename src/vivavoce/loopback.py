"""Addresses of this machine."""

from __future__ import annotations

import re
from ipaddress import ip_address


def is_local(address: str) -> bool:
    """Whether host:port, with a scheme or without, is at this machine, to which no proxy leads."""
    found = re.fullmatch(r"(?:\w+://)?(?:\[(.*?)\]|([^:/]*))(?:[:/].*)?", address)
    host = (found[1] or found[2]) if found else ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
