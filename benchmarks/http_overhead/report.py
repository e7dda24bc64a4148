"""`python -m benchmarks.http_overhead.report FILE.json`: the figures as docs/performance.md shows them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.http_overhead.trace import SPANS

ENGINE = "engine"
NAMES = {ENGINE: "the engine, in process", "raw": "HTTP (httpx)", "openai": "HTTP (openai package)"}
LATENCIES = ("ttfb_ms", "whole_ms")
Found = dict[str, Any]


def overhead(figure: Found, engine: Found) -> Found:
    """The cost of a protocol on top of the engine's latencies: ms, and % of the engine's."""
    added: Found = {}
    for name in (f"{latency}_{which}" for latency in LATENCIES for which in ("p50", "p99")):
        more = figure[name] - engine[name]
        added[name] = more
        added[name.replace("_ms_", "_percent_")] = 100 * more / engine[name]
    return added


def section(found: Found) -> str:
    """Both tables, with an introduction, as Markdown."""
    return "\n".join([introduction(found), "", table(found), "", spans_table(found), ""])


def introduction(found: Found) -> str:
    """The machine, settings and command, in two lines."""
    tokens = "" if found["exact_tokens"] is None else f", {found['exact_tokens']} speech tokens a request"
    return (
        f"{found['hardware']}, model {found['model']}, {found['dtype']}{tokens}; admission {found['admission']}, "
        f"chunks {found['policy']}:\n`{found['command']}`."
    )


def table(found: Found) -> str:
    """Latencies of the engine and of each kind of client, and what HTTP adds to the engine's."""
    lines = [
        "| streams | through | first byte, ms (p50 / p99) | HTTP adds, ms | whole answer, ms (p50 / p99) "
        "| HTTP adds, ms | audio s per s |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(found, users, side) for users in found["users"] for side in (ENGINE, *found["clients"])]
    return "\n".join(lines)


def _row(found: Found, users: int, side: str) -> str:
    figure = found[f"{side}_{users}"]
    cells = [str(users), NAMES[side]]
    for latency in LATENCIES:
        cells.append(f"{figure[f'{latency}_p50']:.0f} / {figure[f'{latency}_p99']:.0f}")
        cells.append("" if side == ENGINE else _added(found[f"{side}_{users}_adds"], latency))
    return f"| {' | '.join([*cells, format(figure['throughput_audio_s_per_s'], '.1f')])} |"


def _added(added: Found, latency: str) -> str:
    percent = latency.replace("_ms", "_percent")
    p50, p99 = (
        f"{added[f'{latency}_{which}']:+.1f} ({added[f'{percent}_{which}']:+.0f} %)" for which in ("p50", "p99")
    )
    return f"{p50} / {p99}"


def spans_table(found: Found) -> str:
    """Mean time of each stage of a request until the first byte; the stages in a column add up to its total."""
    users = found["users"]
    lines = [
        f"| mean ms to the first byte | {' | '.join(f'{count} streams' for count in users)} |",
        f"|---|{'---|' * len(users)}",
    ]
    for name, meaning in SPANS.items():
        lines.append(_means(found, meaning, f"{name}_ms"))
    lines.append(_means(found, "all of it", "ttfb_ms"))
    for name, meaning in (("front_ms", "in process: text and voice"), ("engine_ms", "in process: to the first chunk")):
        figures = " | ".join(f"{found[f'{ENGINE}_{count}'][name]:.1f}" for count in users)
        lines.append(f"| *{meaning}* | {figures} |")
    return "\n".join(lines)


def _means(found: Found, meaning: str, name: str) -> str:
    return f"| {meaning} | {' | '.join(format(found[f'spans_{count}'][name], '.2f') for count in found['users'])} |"


if __name__ == "__main__":
    print(section(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
