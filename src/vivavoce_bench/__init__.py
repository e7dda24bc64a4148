"""Load tests of speech synthesis: time to first audio, gaps, underruns, throughput. See docs/measuring.md.

Each name is imported at its first use, so that the command line starts without importing numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vivavoce_bench.load import ClosedLoop as ClosedLoop
    from vivavoce_bench.load import Ending as Ending
    from vivavoce_bench.load import Load as Load
    from vivavoce_bench.load import OpenLoop as OpenLoop
    from vivavoce_bench.load import Outcome as Outcome
    from vivavoce_bench.load import Piece as Piece
    from vivavoce_bench.load import Refused as Refused
    from vivavoce_bench.load import Target as Target
    from vivavoce_bench.load import Utterance as Utterance
    from vivavoce_bench.load import Workload as Workload
    from vivavoce_bench.load import run_load as run_load
    from vivavoce_bench.measure import Arrival as Arrival
    from vivavoce_bench.report import Report as Report
    from vivavoce_bench.report import figures as figures
    from vivavoce_bench.texts import SENTENCES as SENTENCES

_HOMES = {
    name: f"vivavoce_bench.{module}"
    for module, names in (
        ("load", "ClosedLoop Ending Load OpenLoop Outcome Piece Refused Target Utterance Workload run_load"),
        ("measure", "Arrival"),
        ("report", "Report figures"),
        ("texts", "SENTENCES"),
    )
    for name in names.split()
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vivavoce_bench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
