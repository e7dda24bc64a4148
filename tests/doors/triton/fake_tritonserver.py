"""A program in tritonserver's place: it says that it is ready, and writes down how it was started."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """#!{python}
import http.server, json, signal, sys
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
json.dump(options, open({notes!r}, "w"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = b'[{{"name": "cosyvoice2", "state": "READY"}}]'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *words): pass

http.server.HTTPServer(("127.0.0.1", int(options["http-port"])), Handler).serve_forever()
"""


def install(folder: Path) -> Path:
    """Put the program into `folder`; the file that it writes its options to."""
    folder.mkdir(exist_ok=True)
    notes = folder / "options.json"
    program = folder / "tritonserver"
    program.write_text(PROGRAM.format(python=sys.executable, notes=str(notes)))
    program.chmod(0o755)
    return notes
