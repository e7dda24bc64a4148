"""schemathesis: generated requests to every documented route; no answer but the documented ones."""

import subprocess
import sys
from pathlib import Path

from telling import URL, call

with call("run, 10 requests for each route and check"):
    command = (
        Path(sys.executable).with_name("schemathesis"),
        "run",
        f"{URL}/openapi.json",
        "--checks",
        "status_code_conformance",
    )
    bounds = ("--max-examples", "10", "--phases", "examples,coverage,fuzzing", "--request-timeout", "120", "--no-color")
    # Otherwise it asks for speech within a second, and reports the answer that then breaks off.
    patience = ("--header", "x-request-timeout: 120")
    done = subprocess.run([*command, *bounds, *patience], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:]
