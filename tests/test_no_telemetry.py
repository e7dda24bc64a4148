"""Nothing that vivavoce loads writes an identity of this machine or calls its maker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
VARIABLE = "ORT_DISABLE_TELEMETRY"


def test_speech_leaves_no_identity_behind(tmp_path: Path) -> None:
    """A first sentence in an empty home: onnxruntime keeps no device id and no events there."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE and "XDG" not in name}
    environment.update(HOME=str(home), TMPDIR=str(tmp_path))
    command = [sys.executable, "-m", "vivavoce", "speak", "Hi.", "--out", str(tmp_path / "hi.wav")]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "hi.wav").stat().st_size > 1000
    identities = [path for path in home.rglob("*") if "onnxruntime" in path.name.lower() or "deviceid" in path.name]
    assert identities == []


def test_a_choice_of_the_user_stays() -> None:
    command = [sys.executable, "-c", f"import os, vivavoce; print(os.environ['{VARIABLE}'])"]
    for given, expected in ((None, "1"), ("0", "0")):
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        environment |= {} if given is None else {VARIABLE: given}
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
        assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    "place",
    [
        "docker/Dockerfile.cpu",
        "docker/Dockerfile.cuda",
        "kubernetes/base/settings.yaml",
        "kubernetes/tritons/triton.yaml",
        "ray/rayservice.yaml",
        "systemd/vivavoce.service",
        "triton/Dockerfile.server",
    ],
)
def test_deployments_set_it(place: str) -> None:
    assert VARIABLE in (ROOT / "deploy" / place).read_text(encoding="utf-8")
