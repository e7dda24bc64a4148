"""`vivavoce train` knows its commands, each explains itself, and docs/training.md shows them as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vivavoce.cli.main import main

COMMANDS = (
    *("teacher", "lines", "corpus", "sentences", "text-tokenizer", "tokenizer", "speaker", "lm", "flow", "vocoder"),
    *("assemble", "test-set", "prepare", "pack", "encode"),
)
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHOWN = set(re.findall(r"vivavoce train ([a-z][\w-]*)", TEXT))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_listed_explains_itself_and_stands_in_the_page(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-h"]) == 0
    assert f" {command} " in capsys.readouterr().out
    assert main(["train", command, "-h"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: vivavoce train {command} [OPTIONS] ")
    assert f"vivavoce train {command} " in text.split("Examples:")[1]
    assert command in SHOWN


def test_help_comes_without_torch() -> None:
    code = "import sys; from vivavoce.cli.main import main; main(['train', 'lm', '-h']); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--sequences" in run.stdout
    assert not {"torch", "numpy"} & set(run.stdout.splitlines()[-1].split())


def test_where_the_package_is_missing_a_line_says_so(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "vivavoce", tmp_path / "vivavoce", ignore=shutil.ignore_patterns("*.pt", "*.onnx"))
    code = (
        f"import sys; sys.path[:] = [{str(tmp_path)!r}, *(p for p in sys.path if not p.endswith('src'))]; "
        "from vivavoce.cli.main import main; sys.exit(main(['train', 'lm']))"
    )
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert run.stderr.startswith("error: train: the package vivavoce_training is missing; pip install '.[train]'")
