"""CosyVoice's own `client.py` of both its services, as programs, in every mode; also with a Triton server behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from telling import OUT, TEXT, VOICE, call

PROGRAMS = Path(os.environ["SOURCE"], "runtime", "python")
STUBS = ("-m", "grpc_tools.protoc", f"-I{PROGRAMS / 'grpc'}", f"--python_out={OUT}", f"--grpc_python_out={OUT}")
subprocess.run([sys.executable, *STUBS, "cosyvoice.proto"], check=True)
FLAGS = ("--prompt_text", TEXT, "--prompt_wav", os.environ["RECORDING"], "--instruct_text", "Speak slowly.")

for behind, prefix in (("", ""), (", Triton behind", "FRONT_")):
    for kind, place in (("fastapi", "COSYVOICE_URL"), ("grpc", "COSYVOICE_GRPC")):
        host, _, port = os.environ[prefix + place].rpartition("/")[2].rpartition(":")
        for mode in ("sft", "zero_shot", "cross_lingual", "instruct"):
            # Its files always say 22,050 Hz: this model's 24,000 sound a little slower.
            with call(f"{kind}/client.py --mode {mode}{behind}", ".wav", rate=22_050, speed=22_050 / 24_000) as file:
                asked = ("--host", host, "--port", port, "--mode", mode, "--spk_id", VOICE, "--tts_text", TEXT)
                command = [sys.executable, str(PROGRAMS / kind / "client.py"), *asked, *FLAGS, "--tts_wav", str(file)]
                path = os.pathsep.join((str(OUT), os.environ["PYTHONPATH"]))
                subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
