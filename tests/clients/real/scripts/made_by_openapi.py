"""openapi-python-client: a client that is made of /openapi.json imports, lists, and speaks."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any

from telling import OUT, TEXT, URL, VOICE, call

MADE = "made_client"


def api(name: str) -> Any:
    """A module of the client's calls."""
    return importlib.import_module(f"{MADE}.api.default.{name}")


with call("generate"):
    program = Path(sys.executable).with_name("openapi-python-client")
    where = ["--url", f"{URL}/openapi.json", "--output-path", str(OUT / MADE), "--meta", "none"]
    told = subprocess.run([str(program), "generate", *where], capture_output=True, text=True, check=True)
    assert "Unable to" not in told.stdout + told.stderr, told.stdout
    sys.path.insert(0, str(OUT))

with call("import all of it"):
    found = [module.name for module in pkgutil.walk_packages([str(OUT / MADE)], f"{MADE}.")]
    assert [importlib.import_module(name) for name in found]

made = importlib.import_module(MADE)
client = made.Client(base_url=URL, timeout=60.0)

with call("models"):
    assert api("models_v1_models_get").sync(client=client).data[0].id == "mini"

with call("voices"):
    names = [voice.id for voice in api("voices_v1_audio_voices_get").sync(client=client).data]
    assert VOICE in names

for kind in ("mp3", "wav"):
    with call(f"speech {kind}", f".{kind}", rate=24_000) as file:
        body = importlib.import_module(f"{MADE}.models").SpeechV1AudioSpeechPostJsonSpeechFields
        wanted = body.from_dict({"input": TEXT, "voice": VOICE, "response_format": kind})
        answer = api("speech_v1_audio_speech_post").sync_detailed(client=client, body=wanted)
        assert answer.status_code == HTTPStatus.OK, answer.content
        file.write_bytes(answer.content)

with call("play (GET)", ".mp3", rate=24_000) as file:
    answer = api("play_v1_audio_speech_get").sync_detailed(client=client, input_=TEXT, voice=VOICE)
    assert answer.status_code == HTTPStatus.OK, answer.content
    file.write_bytes(answer.content)

with call("an error"):
    refused = api("play_v1_audio_speech_get").sync(client=client, input_=TEXT, voice="nobody")
    assert "nobody" in refused.error.message
