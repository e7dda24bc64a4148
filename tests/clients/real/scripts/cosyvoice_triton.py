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


LISTED = ("--huggingface-dataset", "", "--manifest-path", LIST, "--num-tasks", 2)
"""Two tasks."""


def run(program: str, *flags: object, model: str = "cosyvoice2") -> str:
    """What it says."""
    command = [sys.executable, PROGRAMS / program, "--model-name", model, *flags]
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, cwd=OUT)
    return (done.stdout + done.stderr).strip()


def run_grpc(model: str, place: str, logs: Path, *flags: object) -> str:
    """What it says; its audio is in `logs`."""
    host, _, port = os.environ[place].rpartition(":")
    server = ("--server-addr", host, "--server-port", port)
    return run("client_grpc.py", *server, *flags, "--log-dir", logs, model=model)


with call("client_http.py", ".wav", rate=24_000) as file:
    run("client_http.py", "--server-url", os.environ["TRITON_HTTP"], *UTTERANCE, "--output-audio", file)

for mode, place in (("offline", "TRITON_GRPC"), ("streaming", "TRITON_STREAM")):
    for what, asked, files in (
        ("one utterance", UTTERANCE, 1),
        ("two tasks", LISTED, 2),
        ("--use-spk2info-cache", (*UTTERANCE, "--use-spk2info-cache", True), 1),
    ):
        with call(f"client_grpc.py --mode {mode}, {what}", ".wav", rate=24_000) as file:
            logs = OUT / file.stem
            said = run_grpc("cosyvoice2", place, logs, "--mode", mode, *asked)
            assert len(list(logs.glob("*.wav"))) == files, said
            # Before a server that nobody has asked yet it writes no statistics: it misses figures that are 0.
            assert list(logs.glob("stats_summary-*.txt")) or "statistics or config: 'ns'" in said, said
            (logs / "test.wav").rename(file)

for model, place in (("cosyvoice2_dit", "TRITON_DIT"), ("cosyvoice3", "TRITON_COSYVOICE3")):
    with call(f"client_grpc.py --model-name {model}", ".wav", rate=24_000, words=model != "cosyvoice3") as file:
        logs = OUT / file.stem
        said = run_grpc(model, place, logs, "--mode", "streaming", *LISTED)
        assert len(list(logs.glob("*.wav"))) == 2, said
        (logs / "test.wav").rename(file)
