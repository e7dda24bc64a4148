"""CosyVoice's own `client_http.py` and `client_grpc.py`, as programs, before real Triton servers of our models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from telling import OUT, TEXT, call

PROGRAMS = Path(os.environ["SOURCE"], "runtime", "triton_trtllm")
RECORDING = os.environ["RECORDING"]
UTTERANCE = ("--reference-audio", RECORDING, "--reference-text", TEXT, "--target-text", TEXT)
LIST = OUT / "list.txt"
LIST.write_text("".join(f"{name}|{TEXT}|{RECORDING}|{TEXT}\n" for name in ("test", "another")), encoding="utf-8")


def run(program: str, *flags: object) -> str:
    """What it says."""
    command = [sys.executable, PROGRAMS / program, "--model-name", "cosyvoice2", *flags]
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, cwd=OUT)
    return (done.stdout + done.stderr).strip()


with call("client_http.py", ".wav", rate=24_000) as file:
    run("client_http.py", "--server-url", os.environ["TRITON_HTTP"], *UTTERANCE, "--output-audio", file)

for mode, place in (("offline", "TRITON_GRPC"), ("streaming", "TRITON_STREAM")):
    host, _, port = os.environ[place].rpartition(":")
    for what, asked, files in (
        ("one utterance", UTTERANCE, 1),
        ("two tasks", ("--huggingface-dataset", "", "--manifest-path", LIST, "--num-tasks", 2), 2),
        ("--use-spk2info-cache", (*UTTERANCE, "--use-spk2info-cache", True), 1),
    ):
        with call(f"client_grpc.py --mode {mode}, {what}", ".wav", rate=24_000) as file:
            logs = OUT / file.stem
            said = run(
                "client_grpc.py",
                "--server-addr",
                host,
                "--server-port",
                port,
                "--mode",
                mode,
                *asked,
                "--log-dir",
                logs,
            )
            assert len(list(logs.glob("*.wav"))) == files, said
            # Before a server that nobody has asked yet it writes no statistics: it misses figures that are 0.
            assert list(logs.glob("stats_summary-*.txt")) or "statistics or config: 'ns'" in said, said
            (logs / "test.wav").rename(file)
