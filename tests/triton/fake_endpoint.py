"""An endpoint of chat completions that says what a test wants."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Endpoint(ThreadingHTTPServer):
    """Chat completions as server-sent events: each of `lines` is one, as it stands; keeps what it was asked."""

    def __init__(self, lines, status=200):
        super().__init__(("127.0.0.1", 0), EndpointHandler)
        self.lines, self.status, self.asked = lines, status, []
        self.left = threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/v1/chat/completions"


class EndpointHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
        self.send_response(self.server.status)
        self.end_headers()
        try:
            for line in self.server.lines:
                self.wfile.write(line.encode() + b"\n\n")
        except OSError:
            self.server.left.set()

    def log_message(self, *words):
        pass


@contextmanager
def serving(lines, **given):
    with Endpoint(lines, **given) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def said(text):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})
