"""`info` and `doctor`: what is there, and everything that is wrong at once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.cli_harness import Run
from vivavoce.checkpoint.folder import fingerprint
from vivavoce.frontend.model_choice import MINI
from vivavoce_inspect.model import inspect_model, is_whole_onnx


@pytest.fixture
def folder(babble: Path) -> Path:
    """A copy of the default model that may be broken."""
    return Path(shutil.copytree(babble, "model"))


@pytest.fixture
def no_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a network would be loaded."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a network loads")

    monkeypatch.setattr("vivavoce.frontend.loading.build_models", fail)
    monkeypatch.setattr("vivavoce.models.encoders.open_onnx", fail)


def test_info_tells_what_a_model_holds(run: Run, babble: Path, no_networks: None) -> None:
    result = run("info", babble)
    assert (result.code, result.err) == (0, "")
    for part in ("babble", "v2", "24000 Hz", "layers of", "babble-a, babble-b", "llm.pt", "MB", fingerprint(babble)):
        assert part in result.text, part
    assert not any(line.endswith(" ") for line in result.text.splitlines())


def test_info_as_json(run: Run, babble: Path) -> None:
    report: dict[str, Any] = json.loads(run("info", babble, "--json").text)
    assert report["card"] == {
        "name": "babble",
        "description": "randomly initialised: it babbles, it does not speak",
        "trained": False,
        "demo": False,
        "scripts": ["Latin"],
        "languages": ["zh", "en", "ja", "ko"],
        "text_stream": "interleaved",
        "instructions": True,
        "guarded": False,
        "flow_steps": 4,
        "silent": None,
        "voices": {},
    }
    assert report["config"]["rates"] == {"sample_rate": 24000, "samples_per_frame": 480, "tokens_per_second": 25}
    assert report["generation"] == report["config"]["generation"] == "v2"
    assert report["problems"] == []
    assert {"path": "llm.pt", "num_bytes": (babble / "llm.pt").stat().st_size} in report["files"]
    parts = {part["name"]: (part["num_parameters"], part["dtypes"]) for part in report["parts"]}
    state = torch.load(babble / "flow.pt", weights_only=True)
    assert parts["flow"] == (sum(tensor.numel() for tensor in state.values()), ["float32"])
    assert set(parts) == {"llm", "flow", "hift"}


def test_info_says_all_that_is_wrong_in_one_line(run: Run, folder: Path, no_networks: None) -> None:
    for name in ("llm.pt", "campplus.onnx", "CosyVoice-BlankEN/vocab.json"):
        (folder / name).unlink()
    (folder / "flow.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    os.truncate(folder / "hift.pt", 1000)
    os.truncate(folder / "speech_tokenizer_v2.onnx", 3000)
    result = run("info", folder)
    assert result.error.startswith("error: model babble: (1) ")
    missing = "missing llm.pt, campplus.onnx, CosyVoice-BlankEN/vocab.json"
    for part in (missing, "git lfs pull", "hift.pt", "tokenizer_v2"):
        assert part in result.err, part
    assert "flow.pt" in result.text
    as_json = run("info", folder, "--json")
    assert as_json.code == 2
    assert len(json.loads(as_json.text)["problems"]) == 4


def strange_weights(folder: Path) -> None:
    state = torch.load(folder / "llm.pt", weights_only=True)
    state["stranger"] = state.pop("llm_decoder.weight")
    state["llm_embedding.weight"] = torch.zeros(3, 3)
    torch.save(state, folder / "llm.pt")


def another_rate(folder: Path) -> None:
    yaml = folder / "cosyvoice2.yaml"
    yaml.write_text(yaml.read_text().replace("sample_rate: 24000\n", "sample_rate: 24001\n", 1))


def another_token_rate(folder: Path) -> None:
    """CosyVoice 1 at CosyVoice2's 25 tokens per second, as CosyVoice-300M-25Hz has them."""
    (folder / "cosyvoice2.yaml").rename(folder / "cosyvoice.yaml")
    (folder / "speech_tokenizer_v2.onnx").rename(folder / "speech_tokenizer_v1.onnx")


def another_file(folder: Path) -> None:
    where = {"model": "CosyVoice2-0.5B", "source": "hf", "repository": "a/b", "revision": "main"}
    record = {**where, "files": {"llm.pt": {"size": 1, "sha256": "0"}}}
    (folder / "vivavoce-download.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (strange_weights, ("llm_decoder.weight", "stranger", "llm_embedding.weight [3, 3]")),
        (another_rate, ("24001",)),
        (another_token_rate, ("input_frame_rate: 25", "CosyVoice-300M, -SFT or -Instruct")),
        (another_file, ("vivavoce download CosyVoice2-0.5B",)),
    ],
)
def test_a_model_is_held_against_itself(folder: Path, spoil: Callable[[Path], None], said: tuple[str, ...]) -> None:
    spoil(folder)
    report = inspect_model(folder)
    assert all(part in report.problems[0] for part in said)
    assert len(report.problems) == 1
    assert report.generation == ("v1" if spoil is another_token_rate else "v2")
    assert report.source == ("hf a/b at main" if spoil is another_file else None)


@pytest.mark.parametrize("name", ["campplus.onnx", "speech_tokenizer_v2.onnx"])
def test_onnx_files_are_whole_or_not(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    assert is_whole_onnx(path)
    for wrong in (b"", content[:-1], content[:100], content + b"\x3a", b"<html>no</html>", b"\xff" * 40, b"\x08\x07"):
        path.write_bytes(wrong)
        assert not is_whole_onnx(path), wrong[:20]


@pytest.mark.slow
def test_doctor_finds_nothing_broken(run: Run, home: Path, no_networks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "123")
    result = run("doctor")
    assert (result.code, result.err) == (0, "")
    for part in ("torch", "onnxruntime", "models", "voices", "disk", "cpu", "babble"):
        assert part in result.text, part
    assert "broken" not in result.text
    findings = {one["subject"]: one for one in json.loads(run("doctor --json").text)}
    version = torch.__version__.partition("+")[0]
    assert (findings["torch"]["state"], findings["torch"]["text"].partition("+")[0]) == ("ok", version)
    assert str(home / "models") in findings["models"]["text"]
    assert findings["openmp"]["text"].startswith("GOMP_SPINCOUNT=123; ")


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


def test_doctor_finds_what_is_broken(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "hift.pt").unlink()
    result = run("doctor", folder)
    assert (result.code, result.err) == (1, "")
    assert "missing hift.pt" in result.text
    Path("file").write_text("")
    monkeypatch.setenv("VIVAVOCE_HOME", "file/home")
    result = run("doctor nope")
    assert result.code == 1
    assert "cannot be written" in result.text
    assert "probe" not in result.text
