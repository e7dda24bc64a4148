"""CosyVoice's gRPC service as its own `client.py` asks it: stubs that grpcio-tools makes of the .proto file."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import grpc
from grpc_tools import protoc
from telling import OUT, TEXT, URL, VOICE, call

PROTO = Path(__file__).parents[4] / "src/vivavoce_grpc/protos/cosyvoice.proto"
assert protoc.main(["", f"-I{PROTO.parent}", f"--python_out={OUT}", f"--grpc_python_out={OUT}", str(PROTO)]) == 0
sys.path.insert(0, str(OUT))
messages: Any = import_module("cosyvoice_pb2")
stubs: Any = import_module("cosyvoice_pb2_grpc")

WANTED = urlencode({"input": TEXT, "voice": VOICE, "response_format": "pcm", "sample_rate": 16_000})
with urlopen(f"{URL}/v1/audio/speech?{WANTED}", timeout=60) as answer:
    PROMPT = answer.read()  # 16-bit samples at 16 kHz, as that client sends them


def ask(kind: str, **fields: str | bytes) -> bytes:
    """The samples of a call's answers."""
    request = messages.Request()
    payload = getattr(request, f"{kind}_request")
    for name, value in {"tts_text": TEXT, **fields}.items():
        setattr(payload, name, value)
    with grpc.insecure_channel(os.environ["COSYVOICE_GRPC"]) as channel:
        return b"".join(answer.tts_audio for answer in stubs.CosyVoiceStub(channel).Inference(request))


with call("sft", ".pcm", rate=24_000) as file:
    file.write_bytes(ask("sft", spk_id=VOICE))

with call("zero_shot", ".pcm", rate=24_000) as file:
    file.write_bytes(ask("zero_shot", prompt_text=TEXT, prompt_audio=PROMPT))

with call("cross_lingual", ".pcm", rate=24_000) as file:
    file.write_bytes(ask("cross_lingual", prompt_audio=PROMPT))
