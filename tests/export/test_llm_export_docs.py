"""What docs/backends.md tells users to type: it parses, and what needs no server does what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
BIAS = np.array([-np.inf, 0.25, -0.5, -np.inf], np.float32)


def block(word: str) -> str:
    """The one block of code that has the word in it."""
    (found,) = (code for code in BLOCKS if word in code)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "embedding_bias.npy", BIAS)
    return tmp_path


def module(name: str, **members: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


def test_every_block_parses() -> None:
    assert len(BLOCKS) >= 5
    for code in BLOCKS:
        compile(code, str(PAGE), "exec")


@pytest.mark.parametrize("newer_runner", [False, True])
def test_vllms_processor_adds_the_bias_under_both_interfaces(
    folder: Path, monkeypatch: pytest.MonkeyPatch, newer_runner: bool
) -> None:
    for name in ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"):
        monkeypatch.setitem(sys.modules, name, module(name, LogitsProcessor=type("LogitsProcessor", (), {})))
    names: dict[str, type] = {}
    exec(block("class SpeechHead(V1, V2)"), names)
    config = SimpleNamespace(model_config=SimpleNamespace(model=str(folder)))
    cpu, logits = torch.device("cpu"), torch.ones(2, 4)
    if newer_runner:
        added = names["SpeechHead"](config, SimpleNamespace(device=cpu)).apply(logits, None)
    else:
        added = names["SpeechHead"](config, cpu, False).apply(logits)
    assert torch.equal(added, (1 + torch.from_numpy(BIAS)).expand(2, 4))
    assert not names["SpeechHead"].is_argmax_invariant(None)


def test_sglangs_processor_adds_the_bias(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sglang.srt.sampling.custom_logit_processor"
    monkeypatch.setitem(sys.modules, name, module(name, CustomLogitProcessor=type("CustomLogitProcessor", (), {})))
    names: dict[str, type] = {}
    exec(block("CustomLogitProcessor"), names)
    parameters = [{"bias": str(folder / "embedding_bias.npy")}] * 2
    added = names["SpeechHead"]()(torch.zeros(2, 4, dtype=torch.float16), parameters)
    assert torch.equal(added, torch.from_numpy(BIAS).half().expand(2, 4))


def test_a_shift_of_the_allowed_ids_forbids_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, dict[int, float]] = {"np": np}  # type: ignore[dict-item]
    exec(block("logit_bias = {"), names)
    logits = torch.tensor([20.0, 3.0, 1.0, 0.0])
    wanted = (logits + torch.from_numpy(BIAS)).softmax(0)
    for token, value in names["logit_bias"].items():
        logits[token] += value
    torch.testing.assert_close(logits.softmax(0), wanted, atol=1e-5, rtol=0)
