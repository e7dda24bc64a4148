"""`python -m tests.parity FOLDER [--only WORD]`: one line per comparison; fails if any fails or there is none."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.parity.check import Skip
from tests.parity.reference import Reference
from tests.parity.run import compare_all


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument("reference", type=Path, help="folder with manifests, goldens, wavs and make_checkpoint.py")
    parser.add_argument("--only", default="", help="goldens whose label contains this, e.g. v2-tiny/flow")
    options = parser.parse_args()
    if not (options.reference / "goldens").is_dir():
        print(f"{options.reference}: holds no folder goldens", file=sys.stderr)
        return 2
    done, failed, skipped = 0, 0, {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vivavoce-parity-") as work:
        for outcome in compare_all(Reference(options.reference, Path(work)), options.only):
            if isinstance(outcome, Skip):
                skipped.setdefault(outcome.why, []).append(outcome.name)
                continue
            print(outcome.line(), flush=True)
            done += 1
            failed += not outcome.passed
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, KiB elsewhere
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(f"{time.monotonic() - started:.0f} s, {memory:.1f} GiB at the peak")
    why = "; ".join(f"{len(names)} {reason}" for reason, names in skipped.items())
    count = sum(map(len, skipped.values()))
    print(f"{done} goldens, {failed} failed, {count} skipped" + (f" ({why})" if why else ""))
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
