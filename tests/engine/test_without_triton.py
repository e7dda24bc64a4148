"""Triton exists on Linux only; without it the plain path works, and nothing needs it to be imported."""

import subprocess
import sys


def test_the_engine_can_be_imported_without_triton():
    script = "import sys; sys.modules['triton'] = None; import vivavoce.doors.python, vivavoce.engine.engine"
    subprocess.run([sys.executable, "-c", script], check=True)
