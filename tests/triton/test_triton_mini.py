"""All stages but the last with the model that the package brings along and a real tritonserver; it is listened to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from vivavoce_bench.evaluate import PocketSphinx, word_errors
from vivavoce_bench.evaluate.error_rate import words
from vivavoce_triton.pipeline import DEFAULT_TEXT, PipelineSettings, run_pipeline
from vivavoce_triton.server import TritonServerSettings

pytest.importorskip("pocketsphinx", reason="needs the extra eval")

USERS = 2
SENTENCES = (
    DEFAULT_TEXT,
    "Please close the window before you leave the room.",
    "Seven people waited for the late train.",
)
"""What the recogniser could hear."""
LISTENS_AT = 16_000


@pytest.mark.long  # two servers of real models load on the cores that the suite has
def test_every_stage_runs_and_what_is_served_is_understood(installation, tmp_path, monkeypatch):
    assert installation.first_on_path is not None
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # many processes share few cores
    monkeypatch.chdir(tmp_path)  # a folder that is called `triton` stands beside the user
    settings = PipelineSettings(
        0,
        5,
        Path("triton"),
        server=TritonServerSettings(http_port=0, grpc_port=0, metrics_port=0),
        environment=installation.first_on_path.parent,
        num_tasks=USERS,
    )
    said: list[str] = []
    run_pipeline(settings, said.append)
    assert [line for line in said if line.startswith("stage")] == [
        "stage 0: download the model",
        "stage 1: convert the language model",
        "stage 2: create the model repository",
        "stage 3: start the server",
        "stage 4: ask for one utterance over HTTP",
        "stage 5: measure a load over gRPC",
    ]
    results = tmp_path / "triton" / "results"
    figures = json.loads((results / "grpc" / "report-single.json").read_text(encoding="utf-8"))["figures"]
    assert (figures["ok"], figures["failed"]) == (USERS, 0)
    ears = PocketSphinx().closed([words(sentence) for sentence in SENTENCES])
    files = [results / "http" / "http.wav", *sorted((results / "grpc").glob("*.wav"))]
    assert len(files) == 1 + USERS
    for file in files:
        samples, rate = soundfile.read(file, dtype="float32")
        assert rate == 24_000
        assert np.sqrt(np.mean(samples**2)) > 0.02
        heard = ears.transcribe(soxr.resample(samples, rate, LISTENS_AT))
        assert word_errors([(DEFAULT_TEXT, heard)]).rate <= 0.2, (file.name, heard)
