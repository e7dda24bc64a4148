"""An engine's process that does what a real one does once in a year: `odd_worker.py MODE FD`."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import time
from typing import Any

from vivavoce.engine_process.messages import Answer, End, Opening, Speak, framed
from vivavoce.errors import RequestCancelled
from vivavoce.frontend.speech_backend import ModelInfo

MARK = "VIVAVOCE_TEST_MARK"
"""Names a file; as long as it is there, "stumbles" does not get ready."""
LONG_S = 600.0


def main() -> None:
    """ends: when it is ready; stumbles: see `MARK`; deaf: takes no messages; other version: of the program. Others do
    something when they are to speak: babbles: says what is no message; gives up: ends the request as if it was
    cancelled; lingers: is silent, and does not end.
    """
    mode, connection = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    receive(connection)
    if mode == "stumbles" and os.path.exists(os.environ[MARK]):
        time.sleep(LONG_S)
    about = ModelInfo("odd", "nothing", 24_000, demo=True)
    connection.sendall(framed(Opening(about, "another") if mode == "other version" else Opening(about)))
    if mode == "ends":
        return
    if mode == "deaf":
        time.sleep(LONG_S)
    while (message := receive(connection)) is not None:
        if not isinstance(message, Speak):
            continue
        if mode == "stumbles":
            return
        if mode == "babbles":
            connection.sendall(struct.pack("!I", 5) + b"babel")
        elif mode == "gives up":
            connection.sendall(framed(Answer(message.number)))
            connection.sendall(framed(End(message.number, RequestCancelled("request: was cancelled"))))
        elif mode == "lingers":
            connection.close()
            time.sleep(LONG_S)


def receive(connection: socket.socket) -> Any:
    """The next message; None: there will be none."""
    head = connection.recv(4, socket.MSG_WAITALL)
    return pickle.loads(connection.recv(*struct.unpack("!I", head), socket.MSG_WAITALL)) if head else None


if __name__ == "__main__":
    main()
