"""`python -m tests.clients.real [NAME …]`: all real clients, or those whose names hold one of the given; a table."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.clients.real.catalogue import CLIENTS
from tests.clients.real.running import Row, Servers, lacking, run_client


def main(wanted: list[str]) -> int:
    """Run and print; 1 if a call was not right."""
    chosen = [one for one in CLIENTS if not wanted or any(name.lower() in one.name.lower() for name in wanted)]
    rows: list[Row] = []
    skipped = 0
    print(f"{'client':26} {'version':10} {'call':44} {'s':>6}  result")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = Servers(folder, stack)
        for place, client in enumerate(chosen):
            if reason := lacking(client):
                skipped += 1
                print(f"{client.name:26} SKIPPED: {reason}", flush=True)
                continue
            for row in run_client(client, servers, folder / str(place)):
                rows.append(row)
                result = f"RED: {row.fault} ({row.heard})" if row.fault else f"ok {row.heard}"
                print(f"{row.client:26} {row.version:10} {row.call:44} {row.seconds:6.1f}  {result}", flush=True)
    red = sum(bool(row.fault) for row in rows)
    print(f"{len(chosen)} clients, {skipped} of them skipped; {len(rows)} calls, {red} red")
    return 1 if red or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
