"""What docs/benchmark.md shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text(encoding="utf-8")


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENTATION, re.DOTALL)
    exec(compile(code, "benchmark.md", "exec"), {})
    assert capsys.readouterr().out == "8 0\n"
