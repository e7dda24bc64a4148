"""openapi-generator, the program in Java: its Python client of /openapi.json imports, lists, and speaks."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from telling import OUT, TEXT, URL, VOICE, call

MADE, SOURCE = "made_by_java", str(OUT / "openapi.json")
SECURE_URL, KEY = os.environ["SECURE_URL"], os.environ["KEY"]


def run(*given: str) -> str:
    """The generator; what it says is kept for an error."""
    program = Path(sys.executable).with_name("openapi-generator-cli")
    done = subprocess.run([str(program), *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


with call("validate"):
    urllib.request.urlretrieve(f"{SECURE_URL}/openapi.json", SOURCE)  # it says how the key is sent
    said = run("validate", "-i", SOURCE)
    assert "No validation issues detected" in said, said

with call("generate"):
    said = run("generate", "-g", "python", "-i", SOURCE, "-o", str(OUT / "made"), "--package-name", MADE)
    assert "ERROR" not in said, said
    sys.path.insert(0, str(OUT / "made"))

with call("import all of it"):
    found = [module.name for module in pkgutil.walk_packages([str(OUT / "made" / MADE)], f"{MADE}.")]
    assert [importlib.import_module(name) for name in found]

made = importlib.import_module(MADE)
api = made.DefaultApi(made.ApiClient(made.Configuration(host=URL)))

with call("models"):
    assert api.models_v1_models_get().data[0].id == "mini"

with call("voices"):
    assert VOICE in [voice.id for voice in api.voices_v1_audio_voices_get().data]

for kind in ("mp3", "wav"):
    with call(f"speech {kind}", f".{kind}", rate=24_000) as file:
        wanted = made.SpeechFields(input=TEXT, voice=made.Voice(VOICE), response_format=kind)
        file.write_bytes(api.speech_v1_audio_speech_post(wanted))

with call("play (GET)", ".mp3", rate=24_000) as file:
    file.write_bytes(api.play_v1_audio_speech_get(input=TEXT, voice=VOICE))

with call("an error"):
    said = ""
    try:
        api.play_v1_audio_speech_get(input=TEXT, voice="nobody")
    except made.exceptions.NotFoundException as error:
        said = error.data.error.message
    assert "nobody" in said

with call("speech, keys and TLS", ".mp3", rate=24_000) as file:
    mine = made.DefaultApi(made.ApiClient(made.Configuration(host=SECURE_URL, access_token=KEY)))
    file.write_bytes(mine.speech_v1_audio_speech_post(made.SpeechFields(input=TEXT, voice=made.Voice(VOICE))))
