"""The Python that docs/measuring.md shows runs, and so do its recognisers."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from vivavoce.frontend.model_choice import BABBLE
from vivavoce_bench.evaluate.recogniser import recogniser_named

TESTS = Path(__file__).parents[2]
DOCUMENTATION = (TESTS.parent / "docs" / "measuring.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_python_example_runs(own_babble, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pocketsphinx", reason="needs the extra eval")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / BABBLE).symlink_to(own_babble)
    shutil.copy(TESTS / "data" / "audio" / "speech_24k_float.wav", tmp_path / "me.wav")
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    _, code = re.findall(r"```python\n(.*?)```", DOCUMENTATION, re.DOTALL)
    exec(compile(code, "evaluation.md", "exec"), {})
    rate, figures = capsys.readouterr().out.splitlines()
    assert rate == "20% (20%–20%)"
    assert float(figures.split()[0]) >= 0.5, "babble is no speech"


STAND_INS = {
    "Paraformer": {"AutoModel": lambda **_: SimpleNamespace(generate=lambda input, fs: [{"text": "Hello  you."}])},
}


@pytest.mark.parametrize(("package", "factory"), [("funasr", "Paraformer")])
def test_the_recognisers_run(package, factory, tmp_path, monkeypatch):
    module = ModuleType(package)
    module.__dict__.update(STAND_INS[factory])
    monkeypatch.setitem(sys.modules, package, module)
    (code,) = re.findall(rf"```py\n(from {package} .*?)```", DOCUMENTATION, re.DOTALL)
    (tmp_path / f"own_{factory.lower()}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    recogniser = recogniser_named(f"own_{factory.lower()}:{factory}")()
    assert recogniser.transcribe(np.zeros(16_000, np.float32)).split() == ["Hello", "you."]
