"""FFmpeg, which decodes what curl receives while it is made, and opens the address of a GET itself."""

import json
import subprocess
from urllib.parse import urlencode

from telling import TEXT, URL, VOICE, call

QUIET = ("ffmpeg", "-nostdin", "-v", "error", "-y")
QUIETLY_PIPED = ("ffmpeg", "-v", "error", "-y", "-i", "-")


def run(*command: object, **more: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)
    if done.returncode:
        raise RuntimeError(done.stderr)


for kind in ("mp3", "opus", "wav"):
    with call(f"curl | ffmpeg, {kind}", ".wav", rate=48_000 if kind == "opus" else 24_000) as file:
        body = json.dumps({"input": TEXT, "voice": VOICE, "response_format": kind})
        asked = ("curl", "-sSN", f"{URL}/v1/audio/speech", "-H", "content-type: application/json", "-d", body)
        with subprocess.Popen(asked, stdout=subprocess.PIPE) as sending:
            run(*QUIETLY_PIPED, file, stdin=sending.stdout)
with call("ffmpeg -i of an address", ".wav", rate=24_000) as file:
    address = f"{URL}/v1/audio/speech?{urlencode({'input': TEXT, 'voice': VOICE})}"
    run(*QUIET, "-i", address, file)
