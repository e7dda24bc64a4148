"""`info` and `doctor`: what is there, and everything that is wrong at once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_harness import Run

from vivavoce.checkpoint.fingerprint import fingerprint
from vivavoce.service.default_model import MINI
from vivavoce.service.inspection import inspect_model, is_whole_onnx


@pytest.fixture
def folder(babble: Path) -> Path:
    """A copy of the default model that may be broken."""
    return Path(shutil.copytree(babble, "model"))


@pytest.fixture
def no_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a network would be loaded."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a network loads")

    monkeypatch.setattr("vivavoce.service.synthesizer.build_models", fail)
    monkeypatch.setattr("vivavoce.models.onnx_session._open_session", fail)


def problems(folder: Path) -> tuple[str, ...]:
    return inspect_model(folder).problems


def test_info_tells_what_a_model_holds(run: Run, babble: Path, no_networks: None) -> None:
    result = run("info")
    assert (result.code, result.err) == (0, "")
    text = result.text
    for part in ("babble", "v2", "24000 Hz", "layers of", "babble-a, babble-b", "llm.pt", "MB"):
        assert part in text, part
    assert fingerprint(babble) in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_info_counts_parameters(run: Run, babble: Path) -> None:
    parts = {part["name"]: part for part in json.loads(run("info", "--json").text)["parts"]}
    state = torch.load(babble / "flow.pt", weights_only=True)
    assert parts["flow"]["num_parameters"] == sum(tensor.numel() for tensor in state.values())
    assert parts["flow"]["dtypes"] == ["float32"]
    assert set(parts) == {"llm", "flow", "hift"}


def test_info_as_json(run: Run, babble: Path) -> None:
    report: dict[str, Any] = json.loads(run("info", babble, "--json").text)
    assert report["card"] == {
        "name": "babble",
        "description": "randomly initialised: it babbles, it does not speak",
        "trained": False,
        "demo": False,
        "scripts": ["Latin"],
        "text_stream": "interleaved",
    }
    assert report["config"]["rates"] == {"sample_rate": 24000, "samples_per_frame": 480, "tokens_per_second": 25}
    assert report["generation"] == report["config"]["generation"] == "v2"
    assert report["problems"] == []
    assert {"path": "llm.pt", "num_bytes": (babble / "llm.pt").stat().st_size} in report["files"]


def test_info_says_all_that_is_wrong_in_one_line(run: Run, folder: Path, no_networks: None) -> None:
    for name in ("llm.pt", "campplus.onnx", "CosyVoice-BlankEN/vocab.json"):
        (folder / name).unlink()
    (folder / "flow.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    os.truncate(folder / "hift.pt", 1000)
    os.truncate(folder / "speech_tokenizer_v2.onnx", 3000)
    result = run("info", folder)
    assert result.code == 2
    assert result.err.startswith("error: model babble: (1) ")
    assert result.err.count("\n") == 1
    for part in (
        "missing llm.pt, campplus.onnx, CosyVoice-BlankEN/vocab.json",
        "git lfs pull",
        "hift.pt",
        "tokenizer_v2",
    ):
        assert part in result.err, part
    assert "flow.pt" in result.text
    as_json = run("info", folder, "--json")
    assert as_json.code == 2
    assert len(json.loads(as_json.text)["problems"]) == 4


def test_weights_are_held_against_the_yaml(folder: Path) -> None:
    state = torch.load(folder / "llm.pt", weights_only=True)
    state["stranger"] = state.pop("llm_decoder.weight")
    state["llm_embedding.weight"] = torch.zeros(3, 3)
    torch.save(state, folder / "llm.pt")
    (problem,) = problems(folder)
    for part in ("llm_decoder.weight", "stranger", "llm_embedding.weight [3, 3]"):
        assert part in problem, part


def test_settings_that_contradict_one_another(folder: Path) -> None:
    yaml = folder / "cosyvoice2.yaml"
    yaml.write_text(yaml.read_text().replace("sample_rate: 24000\n", "sample_rate: 24001\n", 1))
    (problem,) = problems(folder)
    assert "24001" in problem


def test_a_generation_that_does_not_run(folder: Path) -> None:
    (folder / "cosyvoice2.yaml").rename(folder / "cosyvoice3.yaml")
    report = inspect_model(folder)
    assert report.generation == "v3"
    assert len(report.problems) == 1
    assert "v3" in report.problems[0]


def test_a_folder_that_is_no_model(run: Run) -> None:
    result = run("info", ".")
    assert result.code == 2
    assert "cosyvoice2.yaml" in result.err
    assert "unknown" in result.text


def test_info_of_nothing(run: Run) -> None:
    assert "'nope' is neither" in run("info", "nope").error


def test_a_file_that_changed_after_its_download(folder: Path) -> None:
    record = {
        "model": "CosyVoice2-0.5B",
        "source": "hf",
        "repository": "a/b",
        "revision": "main",
        "files": {"llm.pt": {"size": 1, "sha256": "0"}},
    }
    (folder / "vivavoce-download.json").write_text(json.dumps(record))
    report = inspect_model(folder)
    assert report.source == "hf a/b at main"
    assert "vivavoce download CosyVoice2-0.5B" in report.problems[0]


@pytest.mark.parametrize("name", ["campplus.onnx", "speech_tokenizer_v2.onnx"])
def test_onnx_files_are_whole_or_not(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    assert is_whole_onnx(path)
    for wrong in (b"", content[:-1], content[:100], content + b"\x3a", b"<html>no</html>", b"\xff" * 40, b"\x08\x07"):
        path.write_bytes(wrong)
        assert not is_whole_onnx(path), wrong[:20]


def test_doctor_finds_nothing_broken(run: Run, no_networks: None) -> None:
    result = run("doctor")
    assert (result.code, result.err) == (0, "")
    for part in ("torch", "onnxruntime", "models", "voices", "disk", "cpu", "babble"):
        assert part in result.text, part
    assert "broken" not in result.text


def test_doctor_as_json(run: Run, home: Path) -> None:
    findings = {one["subject"]: one for one in json.loads(run("doctor", "--json").text)}
    torch_found = findings["torch"]
    assert (torch_found["state"], torch.__version__.partition("+")[0]) == ("ok", torch_found["text"].partition("+")[0])
    assert str(home / "models") in findings["models"]["text"]


def test_doctor_looks_at_the_default_model_and_makes_nothing(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIVAVOCE_MODEL")
    shutil.rmtree(home)
    result = run("doctor")
    assert result.code == 0
    assert f"is whole: {MINI}" in result.text
    assert not home.exists()


@pytest.mark.parametrize(
    ("package", "code", "cost"),
    [("onnxruntime", 1, "no model can be loaded"), ("av", 0, "m4a, aac, webm"), ("torch", 1, "nothing works")],
)
def test_doctor_says_what_a_missing_package_costs(
    run: Run, monkeypatch: pytest.MonkeyPatch, package: str, code: int, cost: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = run("doctor")
    assert result.code == code
    line = next(line for line in result.text.splitlines() if line.startswith(package))
    assert cost in line
    assert f"pip install {package}" in line


def test_doctor_finds_a_broken_model(run: Run, folder: Path) -> None:
    (folder / "hift.pt").unlink()
    result = run("doctor", folder)
    assert (result.code, result.err) == (1, "")
    assert "missing hift.pt" in result.text
    assert run("doctor", "nope").code == 1


def test_doctor_finds_a_home_that_cannot_be_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("VIVAVOCE_HOME", "file/home")
    result = run("doctor")
    assert result.code == 1
    assert "cannot be written" in result.text
    assert "probe" not in result.text


def test_doctor_takes_unwritable_voices_lightly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *, field: str) -> None:
        if field == "voices":
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("vivavoce.doors.cli.doctor.check_writable", refuse)
    result = run("doctor", "--json")
    findings = {one["subject"]: one for one in json.loads(result.text)}
    assert (result.code, findings["voices"]["state"]) == (0, "note")
    assert "cannot be written (Permission denied); set VIVAVOCE_HOME" in findings["voices"]["text"]


@pytest.mark.parametrize("package", ["rich", "platformdirs"])
def test_doctor_knows_the_packages_of_the_command_line(run: Run, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = run("doctor", "--json")
    findings = {one["subject"]: one for one in json.loads(result.text)}
    assert (result.code, findings[package]["state"], findings["typer"]["state"]) == (1, "broken", "ok")
