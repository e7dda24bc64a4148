"""`python -m tests.soak`: run a soak, print what came of it; exit 1 if a bound is broken."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from tests.soak.soak import Plan, Report, soak
from vivavoce.checkpoint.babble import make_babble_checkpoint
from vivavoce.models.build import build_models


def main() -> int:
    """Parse, run, print."""
    default = Plan()
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=default.requests)
    parser.add_argument("--users", type=int, default=default.users, help="threads that ask at the same time")
    parser.add_argument("--cancels", type=float, default=default.cancels, help="share of the users who leave")
    parser.add_argument("--faults", type=int, default=default.faults, help="one of so many calls fails; 0: none does")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        models = build_models(make_babble_checkpoint(Path(folder) / "babble"), torch.device("cpu"))
    report = soak(models, Plan(options.requests, options.users, options.cancels, options.faults))
    print(table(report))
    return 1 if report.broken else 0


def table(report: Report) -> str:
    """What was measured, one line each."""
    total = report.outcomes.total()
    lines = [f"{'':<22}{'start':>10}{'10 %':>10}{'end':>10}"]
    for title, name in (
        ("memory, MB", "rss_mb"),
        ("threads", "threads"),
        ("free slots", "slots_free"),
        ("pages in use", "pages_in_use"),
        ("voices kept", "prompts"),
    ):
        lines.append(f"{title:<22}" + "".join(f"{getattr(one, name):>10.0f}" for one in report.measures))
    lines.append(f"{'objects':<22}" + "".join(f"{one.objects.total():>10}" for one in report.measures))
    lines.append(f"{total} requests in {report.seconds:.0f} s: {total / report.seconds:.1f} a second; "
                 f"{report.audio_s:.0f} s of audio; {report.faults} faults")  # fmt: skip
    lines += [f"  {name:<20}{count:>8}" for name, count in report.outcomes.most_common()]
    lines += [f"broken: {one}" for one in report.broken] or ["every bound was kept"]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
