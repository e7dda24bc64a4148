"""The workflow of a release names what is there, and README.md's links lead somewhere from a package index."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "release" / "absolute_links.py"
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
JOBS: dict[str, Any] = WORKFLOW["jobs"]
RUNS = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
BASE = "https://github.com/someone/vivavoce/blob/v1.2.3"


def test_it_runs_for_tags_of_versions_and_may_do_no_more_than_it_needs() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert JOBS["dist"]["permissions"] == {"contents": "write"}
    assert JOBS["images"]["permissions"] == {"contents": "read", "packages": "write"}
    assert JOBS["images"]["needs"] == "dist"
    for job in JOBS.values():
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/checkout@v4"))


@pytest.mark.parametrize("script", RUNS)
def test_a_script_is_one_and_names_what_is_there(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "${{" not in script, "values come as variables, which no shell reads as code"
    for kind in JOBS["images"]["strategy"]["matrix"]["kind"]:
        for path in re.findall(r"(?:deploy|src)/[\w./-]+", script.replace("$KIND", kind)):
            assert (ROOT / path).is_file(), path


def test_it_builds_every_image_of_the_server_and_the_wheel() -> None:
    files = {path.suffix[1:] for path in (ROOT / "deploy" / "docker").glob("Dockerfile.*") if "ignore" not in path.name}
    assert set(JOBS["images"]["strategy"]["matrix"]["kind"]) == files
    assert any(script.startswith("make dist") for script in RUNS)
    (check,) = [script for script in RUNS if "version.py" in script]
    assert "exec(open(" in check
    found = subprocess.run(
        ["bash", "-ec", check.replace("python ", f"{sys.executable} ")],
        cwd=ROOT,
        env={"GITHUB_REF_NAME": "v0.0.0"},
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stderr) == (1, ""), "another version's tag makes no release"


def test_links_are_absolute_after_it_and_lead_to_files(tmp_path: Path) -> None:
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(before, encoding="utf-8")
    subprocess.run([sys.executable, SCRIPT, BASE], cwd=tmp_path, check=True)
    after = (tmp_path / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", after)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", before)) > 20
    assert all(link.startswith("https://") for link in links)
    for link in links:
        if link.startswith(BASE):
            assert (ROOT / re.sub(r"[?#].*", "", link.removeprefix(f"{BASE}/"))).exists(), link
    assert f"({BASE}/docs/images/web-page.png?raw=true)" in after
    assert re.sub(re.escape(f"{BASE}/") + r"|\?raw=true", "", after) == before
    again = subprocess.run([sys.executable, SCRIPT, BASE], cwd=tmp_path, check=True)
    assert again.returncode == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == after, "absolute links stay"


def test_a_wrong_base_is_one_line(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, SCRIPT, "somewhere"], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    assert "usage: " in found.stderr
