"""docs/request.md lists the files that one request enters, and these are the files that it enters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "request.md"

TRACE = """
import sys, threading
from pathlib import Path
import vivavoce

root = Path(vivavoce.__file__).resolve().parent
entered = set()

def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_name[0] != "<":
        entered.add(frame.f_code.co_filename)

threading.setprofile(profile)  # the engine's threads begin in load
with vivavoce.load(device="cpu") as tts:
    list(tts.stream("Hello."))
    entered.clear()
    sys.setprofile(profile)
    list(tts.stream("Hello there."))
    sys.setprofile(None)
files = (Path(file).resolve() for file in entered)
print("\\n".join(sorted(file.relative_to(root).as_posix() for file in files if file.is_relative_to(root))))
"""


def test_the_page_lists_the_files_of_a_request() -> None:
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    traced = subprocess.run([sys.executable, "-c", TRACE], check=True, capture_output=True, text=True, cwd=ROOT)
    assert sorted(listed) == traced.stdout.split()
