"""Stages 4 and 5: one utterance over HTTP, and a load over gRPC."""

from __future__ import annotations

import wave
from typing import Any

from vivavoce.doors.triton.pipeline.context import Context
from vivavoce.doors.triton.pipeline.file_facts import file_facts
from vivavoce.errors import StageFailed


def client_inputs(context: Context) -> dict[str, Any]:
    """What the result depends on."""
    asked = context.settings.asked
    return {
        "repository": context.work.made(2),
        "source": context.work.made(0),
        "conversion": context.work.made(1),
        "model": context.settings.speaking_model,
        "mode": context.settings.mode.value,
        "text": asked.text,
        "reference": file_facts(asked.reference),
        "reference_text": asked.reference_text,
        "manifest": file_facts(asked.manifest),
        "num_tasks": asked.num_tasks,
    }


def ask_over_http(context: Context) -> dict[str, Any]:
    """One utterance. A server that streams is asked at `generate_stream`; one that lacks it is explained by the client.

    Raises:
        VivavoceError: no server can be reached or started, or it refuses.
        StageFailed: what came is no speech.
    """
    address = context.serving.reach()
    audio = context.work.results(4) / "http.wav"
    audio.parent.mkdir(parents=True, exist_ok=True)
    url = f"http://{address.host}:{address.http_port}"
    where = ["--server-url", url, "--model-name", context.settings.speaking_model, "--output-audio", audio]
    context.vivavoce("client", "http", *where, *_said(context))
    with wave.open(str(audio)) as found:
        seconds = found.getnframes() / found.getframerate()
    if not seconds:
        raise StageFailed(f"http: {audio} holds no audio; see the server's log {context.work.server_log}")
    context.say(f"{seconds:.2f} s of audio in {audio}")
    return {"audio": str(audio), "seconds": round(seconds, 3)}


def measure_over_grpc(context: Context) -> dict[str, Any]:
    """Latencies, real-time factor and Triton's own statistics under a load.

    Raises:
        VivavoceError: no server can be reached or started, or the load failed.
    """
    settings, folder = context.settings, context.work.results(5)
    python = context.with_grpc()
    address = context.serving.reach()
    where = ["--server-addr", address.host, "--server-port", address.grpc_port, "--log-dir", folder]
    load = ["--model-name", settings.speaking_model, "--mode", settings.mode.value]
    asked = settings.asked
    said = ["--manifest-path", asked.manifest] if asked.manifest is not None else _said(context)
    context.vivavoce("client", "grpc", *where, *load, "--num-tasks", asked.num_tasks, *said, python=python)
    reports = sorted(folder.glob("report-*.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise StageFailed(f"grpc: the client left no report in {folder}; see its message above")
    return {"report": str(reports[-1])}


def _said(context: Context) -> list[object]:
    asked = context.settings.asked
    reference: list[object] = []
    if asked.reference is not None:
        reference = ["--reference-audio", asked.reference, "--reference-text", asked.reference_text]
    return [*reference, "--target-text", asked.text]
