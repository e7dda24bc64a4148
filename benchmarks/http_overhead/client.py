"""`python -m benchmarks.http_overhead.client URL KIND`: users of a server, in a process of their own."""

from __future__ import annotations

import sys

from benchmarks.http_overhead.loads import answer_loads

KINDS = ("openai", "raw")
"""Through the openai package's streaming call, or through httpx without it."""


def main() -> None:
    """Answer loads with a client of that kind."""
    url, kind = sys.argv[1:]
    if kind == "openai":
        from benchmarks.http_overhead.client_openai import OpenAISpeaker

        speaker = OpenAISpeaker.open(url)
        answer_loads({}, speaker, speaker.client.close)
    else:
        from benchmarks.http_overhead.client_raw import RawSpeaker

        raw = RawSpeaker.open(url)
        answer_loads({}, raw, raw.client.aclose)


if __name__ == "__main__":
    main()
