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
beside = root.with_name("vivavoce_textnorm")
for file in (Path(file).resolve() for file in entered):
    if file.is_relative_to(root) or file.is_relative_to(beside):
        print(file.relative_to(root if file.is_relative_to(root) else beside.parent).as_posix())
"""


def test_the_page_lists_the_files_of_a_request() -> None:
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    traced = subprocess.run([sys.executable, "-c", TRACE], check=True, capture_output=True, text=True, cwd=ROOT)
    assert sorted(listed) == sorted(traced.stdout.split())
