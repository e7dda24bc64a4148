"""curl, as it is typed: JSON, a GET, lists and names."""

import json
import subprocess

from telling import TEXT, URL, VOICE, call

SPEECH = f"{URL}/v1/audio/speech"


def curl(*arguments: object) -> str:
    asked = ("curl", "-sS", "--fail-with-body", *map(str, arguments))
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout or done.stderr)
    return done.stdout


for kind in ("mp3", "wav", "opus"):
    with call(f"POST JSON {kind}", f".{kind}", rate=48_000 if kind == "opus" else 24_000) as file:
        body = json.dumps({"input": TEXT, "voice": VOICE, "response_format": kind})
        curl(SPEECH, "-H", "content-type: application/json", "-d", body, "-o", file)
with call("GET", ".mp3", rate=24_000) as file:
    curl("-G", SPEECH, "--data-urlencode", f"input={TEXT}", "-d", f"voice={VOICE}", "-o", file)
with call("HEAD /v1/models"):
    curl("-I", f"{URL}/v1/models")
with call("GET /v1/audio/voices"):
    names = json.dumps(json.loads(curl(f"{URL}/v1/audio/voices")))
    assert VOICE in names
    assert "alloy" in names
with call("an alias of OpenAI's", ".wav", rate=24_000) as file:
    body = json.dumps({"input": TEXT, "voice": "alloy", "response_format": "wav"})
    curl(SPEECH, "-H", "content-type: application/json", "-d", body, "-o", file)
with call("POST without a content-type is told what it lacks"):
    told = subprocess.run(("curl", "-sS", SPEECH, "-d", json.dumps({"input": TEXT})), capture_output=True, text=True)
    assert "send content-type: application/json" in told.stdout, told.stdout
