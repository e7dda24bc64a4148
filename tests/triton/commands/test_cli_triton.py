from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.cli.cli_harness import Run
from vivavoce.errors import StageFailed
from vivavoce_bench.halves import OwnModel
from vivavoce_triton import pipeline, server
from vivavoce_triton.pipeline import PipelineSettings


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PipelineSettings]:
    """What the pipeline is asked for, instead of its running."""
    found: list[PipelineSettings] = []
    monkeypatch.setattr(pipeline, "run_pipeline", lambda settings, say: found.append(settings))
    return found


def test_help_without_a_stage(run: Run, asked: list[PipelineSettings]) -> None:
    assert "--stop-stage" in run("triton").text
    assert asked == []


def test_options_reach_the_pipeline(run: Run, asked: list[PipelineSettings], tmp_path: Path) -> None:
    line = "triton --stage 2 --stop_stage 3 --model mini --llm vivavoce --mode offline --model-set both --device cpu"
    more = "--set bls_instance_num=2 --http-port 0 --batch-size 4,1 --num-tasks 3 --force --from ModelScope"
    assert run(f"{line} {more} --work-dir", tmp_path).code == 0
    (found,) = asked
    assert (found.first, found.last, found.model, found.work) == (2, 3, "mini", tmp_path)
    assert (found.language_model.value, found.mode.value, found.models.value) == ("vivavoce", "offline", "both")
    assert found.values == {"bls_instance_num": "2", "device": "cpu"}
    assert found.device == "cpu"
    assert (found.server.http_port, found.server.grpc_port) == (0, 8001)
    assert (found.batch_sizes, found.num_tasks, found.force, found.hub) == ([4, 1], 3, True, "modelscope")


def test_one_stage(run: Run, asked: list[PipelineSettings]) -> None:
    assert run("triton --stage 1").code == 0
    assert (asked[0].first, asked[0].last) == (1, 1)
    assert (asked[0].batch_sizes, asked[0].device) == (None, "auto")


def test_termination_unwinds_as_an_interrupt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pipeline, "run_pipeline", lambda settings, say: os.kill(os.getpid(), signal.SIGTERM))
    assert run("triton --stage 3").code == 130
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "config.pbtxt"
    file.write_text('n: ${triton_max_batch_size}\nm: "${model_dir}"\n')
    return file


def test_fill_in_place_as_the_documents_write_it(run: Run, template: Path) -> None:
    assert run("triton fill_template -i", template, "model_dir:/m,triton_max_batch_size:8").code == 0
    assert template.read_text() == 'n: 8\nm: "/m"\n'


def test_fill_to_stdout_and_to_a_file(run: Run, template: Path, tmp_path: Path) -> None:
    before = template.read_text()
    assert run("triton fill-template", template, "model_dir=/a:b,c").text == 'n: 16\nm: "/a:b,c"\n'
    assert run("triton fill-template", template, "model_dir=/x", "-o", tmp_path / "out").out == b""
    assert (tmp_path / "out").read_text() == 'n: 16\nm: "/x"\n'
    assert template.read_text() == before


def test_an_environment_that_is_there(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / server.STAMP).write_text(json.dumps(server._facts()))
    assert run("triton env --dir", folder).text == f"{folder}\n"
    assert run("triton env --dir", folder, "--remove").code == 0
    assert not folder.exists()


def test_a_language_model_says_something(run: Run) -> None:
    result = run("triton test-llm --input-text", "Hello there.")
    assert result.code == 0
    assert re.fullmatch(r"torch: \d+ speech tokens: [\d ]+\n", result.err)


def test_a_language_model_that_is_silent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnModel, "generate", lambda model, prompts: [[]])
    result = run("triton test-llm")
    assert result.code == StageFailed.exit_code
    assert "gave no speech token" in result.err


def test_an_engine_needs_its_runtime(run: Run, tmp_path: Path) -> None:
    line = (
        f"triton test_llm --engine_dir {tmp_path} --tokenizer_dir {tmp_path} --top_k 50 --top_p 0.95 --temperature 0.8"
    )
    assert "trtllm needs the package tensorrt_llm" in run(line).error
    assert "top_k: is only for engines; leave it out" in run("triton test-llm --top-k 5").error
