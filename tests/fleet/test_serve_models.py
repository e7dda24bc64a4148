"""`vivavoce serve` with several models: two random ones of one base, and two of other generations."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.engine_process.test_engine_host import recording
from tests.server.http.serve_process import LATE_S, ServerProcess, command, environment, serving_process
from tests.small_checkpoint import small_checkpoint
from vivavoce.frontend.voices.folder_store import FolderStore

pytestmark = pytest.mark.process

BRIEF = {"max_ratio": 2.0, "min_ratio": 0.0, "top_k": 5}
"""Babble does not stop by itself."""


def spoken(server: ServerProcess, model: str, **fields: Any) -> httpx.Response:
    body = {"input": "Hello there.", "model": model, "response_format": "pcm", "sampling": BRIEF, **fields}
    for _ in range(4):  # a busy machine takes longer to load a model than a request waits
        answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=LATE_S)
        if "still being loaded" not in answer.text:
            break
    return answer


def samples(server: ServerProcess, model: str, **fields: Any) -> np.ndarray:
    answer = spoken(server, model, **fields)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<i2").astype(np.float32)


def models(server: ServerProcess) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in httpx.get(f"{server.url}/v1/models").json()["data"]}


def processes(server: ServerProcess) -> dict[str, list[int]]:
    """The processes of each engine that became ready, in order."""
    found: dict[str, list[int]] = {}
    for line in server.log.lines:
        if line["event"] == "engine ready":
            found.setdefault(line["engine"], []).append(line["process"])
    return found


def test_several_models_behind_one_server(babble: Path, babble_v1: Path, babble_v3: Path, tmp_path: Path) -> None:
    tuned = small_checkpoint(tmp_path / "tuned", seed=1) / "llm.pt"
    flags = ["--model", f"base={babble}", "--model", f"tuned=base+{tuned}", "--model", f"old={babble_v1}"]
    flags += ["--model", f"new={babble_v3}", "--load", "on_demand", "--max-loaded", "3"]
    quick = {"VIVAVOCE_MODEL_WARM_UP_S": 0, "VIVAVOCE_MODELS_UNLOAD_AFTER_S": 0}
    with serving_process(tmp_path, *flags, **quick) as server:
        told = models(server)
        rates = {name: (one["sample_rate"], one["generation"], one["loaded"]) for name, one in told.items()}
        assert rates == {
            "base": (24_000, "v2", True),
            "tuned": (24_000, "v2", False),
            "old": (22_050, "v1", False),
            "new": (24_000, "v3", False),
        }
        base, other = samples(server, "tts-1"), samples(server, "tuned")
        assert not np.array_equal(base[: len(other)], other[: len(base)]), "another language model"
        assert np.array_equal(samples(server, "base"), base), "the default model is undisturbed"
        sent = {"name": "anna", "transcript": "hello there"}
        added = httpx.post(
            f"{server.url}/v1/audio/voices", data=sent, files={"file": recording().content}, timeout=LATE_S
        )
        assert added.status_code in (200, 201), added.text
        for model in ("base", "tuned", "old"):
            assert len(samples(server, model, voice="anna"))
        kept = FolderStore(tmp_path / "voices").load("anna")
        assert len({kept.fingerprint, *(one.fingerprint for one in kept.others)}) == 2, "of two generations"
        assert {name for name, one in models(server).items() if one["loaded"]} == {"base", "tuned", "old"}
        figures = httpx.get(f"{server.url}/metrics").text
        assert 'vivavoce_engine_up{engine="tuned",model="tuned"} 1.0' in figures

        before = len(server.log.lines)
        os.kill(processes(server)["tuned"][0], signal.SIGKILL)
        assert np.array_equal(samples(server, "base"), base), "an engine that ends harms no other"
        assert server.log.await_event("engine ready", before)["engine"] == "tuned"
        assert np.array_equal(samples(server, "tuned"), other)
        assert len(processes(server)["old"]) == 1

        assert len(samples(server, "new"))
        assert server.log.await_event("model unloaded: old, for new")
        ended = [line for line in server.log.lines if line["event"] == "speech ended"]
        assert [line["model"] for line in ended][:3] == ["base", "tuned", "base"]
        refused = spoken(server, "nobody")
        assert refused.status_code == 404
        assert "use one of base, tuned, old, new" in refused.json()["error"]["message"]


def test_what_cannot_be_ends_the_start(tmp_path: Path) -> None:
    wrong = command("--port", 0, "--voices", tmp_path / "voices", "--model", "mini", "--model", "own=mini+/no/llm.pt")
    ended = subprocess.run(
        wrong, env=environment(tmp_path), capture_output=True, text=True, timeout=LATE_S, check=False
    )
    assert (ended.returncode, ended.stderr.strip().splitlines()[-1]) == (
        2,
        "error: model: /no/llm.pt is not a file; name the weights of a language model",
    )
