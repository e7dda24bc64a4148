"""Open WebUI in its small form, offline: models, voices and speech that its page asks for come from the server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from telling import OUT, TEXT, URL, VOICE, call

SETTINGS = f"""
AUDIO_TTS_ENGINE=openai
AUDIO_TTS_OPENAI_API_BASE_URL={URL}/v1
AUDIO_TTS_OPENAI_API_KEY=none
AUDIO_TTS_MODEL=tts-1
AUDIO_TTS_VOICE={VOICE}
"""
ITS_OWN = {"WEBUI_AUTH": "False", "USE_SLIM_DOCKER": "true", "OFFLINE_MODE": "true", "DATA_DIR": str(OUT / "data")}
LATE_S = 120.0

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]
HEADERS = {"Content-Type": "application/json"}


def ask(path: str, body: object = None) -> bytes:
    """What Open WebUI answers; body: of a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, HEADERS)
    with urllib.request.urlopen(request, timeout=LATE_S) as answer:
        return bytes(answer.read())


def told(path: str, body: object = None) -> Any:
    return json.loads(ask(path, body))


def wait_for(server: subprocess.Popen[bytes]) -> None:
    """Until it answers."""
    end = time.monotonic() + LATE_S
    while True:
        try:
            assert told("/health")["status"] is True
            return
        except OSError:
            last = (OUT / "webui.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Open WebUI does not answer: {last}") from None
            time.sleep(0.2)


def check_lists() -> None:
    """The names must be the server's own: where it does not get them, it offers OpenAI's."""
    with call(f"models, {where}"):
        models = told("/api/v1/audio/models")["models"]
        assert [model["id"] for model in models] == ["mini"], models
    with call(f"voices, {where}"):
        voices = told("/api/v1/audio/voices")["voices"]
        assert VOICE in [voice["id"] for voice in voices], voices


program = Path(sys.executable).with_name("open-webui")
variables = {**os.environ, **ITS_OWN, **dict(line.split("=", 1) for line in SETTINGS.split())}
started = [str(program), "serve", "--host", "127.0.0.1", "--port", str(PORT)]
with (
    open(OUT / "webui.log", "wb") as log,
    subprocess.Popen(started, env=variables, cwd=OUT, stdout=log, stderr=subprocess.STDOUT) as server,
):
    try:
        with call("serve"):
            wait_for(server)
            user = told("/api/v1/auths/signin", {"email": "", "password": ""})
            HEADERS["Authorization"] = f"Bearer {user['token']}"

        where = "no keys"
        check_lists()
        with call("speech", ".mp3", rate=24_000) as file:
            file.write_bytes(ask("/api/v1/audio/speech", {"input": TEXT, "voice": VOICE}))
        with call("speech, the voice of its settings", ".mp3", rate=24_000) as file:
            file.write_bytes(ask("/api/v1/audio/speech", {"input": TEXT}))
        with call("speech, OpenAI's voice", ".mp3", rate=24_000) as file:
            file.write_bytes(ask("/api/v1/audio/speech", {"input": TEXT, "voice": "alloy"}))
        with call("speech, a piece without words"):
            assert ask("/api/v1/audio/speech", {"input": "😀", "voice": VOICE})

        where = "keys and TLS"
        with call("settings, keys and TLS"):
            config = told("/api/v1/audio/config")
            config["tts"].update(OPENAI_API_BASE_URL=f"{os.environ['SECURE_URL']}/v1", OPENAI_API_KEY=os.environ["KEY"])
            told("/api/v1/audio/config/update", config)
        check_lists()
        with call("speech, keys and TLS", ".mp3", rate=24_000) as file:
            another = {"input": f"{TEXT} ", "voice": VOICE}  # what it was asked for once, it keeps
            file.write_bytes(ask("/api/v1/audio/speech", another))
    finally:
        server.terminate()
