"""How the server's environment is made, with a program in its interpreter's place; a real one serves other tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vivavoce.errors import DownloadError, InvalidRequest, MissingDependency
from vivavoce_triton import server
from vivavoce_triton.server import (
    STAMP,
    ServerEnvironment,
    ServerInstallation,
    default_folder,
    ensure_environment,
    find_installation,
    remove_environment,
)

INTERPRETER = """#!/bin/sh
echo "$@" >> "{calls}"
case "$*" in
    "-I -m pip install"*) ls "{packages}" >> "{seen}"; echo "Downloading numpy.whl (18 MB)"; {install} ;;
    "-I -c "*) echo {numpy} ;;
esac
"""


class Fake:
    """A folder that looks as a broken-off environment does, with its interpreter."""

    def __init__(self, folder):
        self.folder = folder / "env"
        self.calls, self.seen = folder / "calls", folder / "seen"
        self.made = ServerEnvironment(self.folder)
        self.made.packages.mkdir(parents=True)
        (self.folder / "bin").mkdir()
        (self.folder / ".vivavoce-server.lock").touch()

    def behave(self, install="true", numpy="1.26.4"):
        places = {"calls": self.calls, "packages": self.made.packages, "seen": self.seen}
        self.made.python.write_text(INTERPRETER.format(**places, install=install, numpy=numpy))
        self.made.python.chmod(0o755)
        return self.folder

    def lines(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path)


def test_made_once(fake):
    said: list[str] = []
    folder = fake.behave()
    assert ensure_environment(folder, said.append) == ServerEnvironment(folder)
    installs = [line for line in fake.lines() if "pip install" in line]
    assert len(installs) == 2
    assert "numpy>=1.26,<2 tritonclient" in installs[0]
    assert installs[1].endswith("--no-deps nvidia-pytriton==0.7.0")
    assert [line for line in said if line.startswith("installing")] == [
        "installing numpy>=1.26,<2, tritonclient[grpc,http]>=2.50",
        "installing nvidia-pytriton==0.7.0",
    ]
    before = fake.lines()
    assert ensure_environment(folder, said.append) == ServerEnvironment(folder)
    assert fake.lines() == before


def test_other_facts_complete_it_anew(fake, monkeypatch):
    ensure_environment(fake.behave())
    monkeypatch.setattr(server, "LIBRARIES", ("numpy==1.26.4",))
    ensure_environment(fake.folder)
    assert sum("pip install" in line for line in fake.lines()) == 4
    assert json.loads((fake.folder / STAMP).read_text())["requirements"] == ["nvidia-pytriton==0.7.0", "numpy==1.26.4"]


def test_the_running_packages_come_after_its_own(fake):
    ensure_environment(fake.behave())
    (fake.folder / STAMP).unlink()
    ensure_environment(fake.behave())
    (shown,) = fake.made.packages.iterdir()
    # pip must not see them: it would take their NumPy 2 for its own.
    assert fake.seen.read_text() == ""
    added = f"site.addsitedir({str(fake.made.packages)!r})"
    code = f"import site; {added}; import vivavoce, torch; print(vivavoce.__file__)"
    found = subprocess.check_output([sys.base_prefix + "/bin/python3", "-I", "-c", code], text=True)
    assert Path(found.strip()).samefile(Path(server.__file__).parents[1] / "vivavoce" / "__init__.py")
    assert shown.name > "distutils-precedence.pth"


def test_without_a_network(fake):
    folder = fake.behave(install="echo 'ERROR: No matching distribution found for numpy'; exit 1")
    with pytest.raises(DownloadError, match=r"\(No matching distribution found for numpy\); connect .*PIP_INDEX_URL"):
        ensure_environment(folder)
    assert not (folder / STAMP).exists()
    ensure_environment(fake.behave())
    assert (folder / STAMP).is_file()


def test_numpy_2_is_found_out(fake):
    with pytest.raises(MissingDependency, match=r"does not work \(numpy 2\.3\.0\); remove .* and try again"):
        ensure_environment(fake.behave(numpy="2.3.0"))
    assert not (fake.folder / STAMP).exists()


def test_a_python_without_wheels(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_NEWEST", (3, 9))
    with pytest.raises(MissingDependency, match=r"runs with 3\.10 to 3\.12, this is 3\.\d+; .*container"):
        ensure_environment(tmp_path / "env")
    assert not (tmp_path / "env").exists()


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for act in (ensure_environment, remove_environment):
        with pytest.raises(InvalidRequest, match="holds other files"):
            act(tmp_path / "mine")
        with pytest.raises(InvalidRequest, match="is not a folder"):
            act(tmp_path / "mine" / "thesis.txt")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_one_for_each_interpreter(monkeypatch, tmp_path):
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    first = default_folder()
    assert first.parent == tmp_path
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    assert default_folder() != first


def test_the_containers_server_comes_first(tmp_path, monkeypatch):
    program = tmp_path / "tritonserver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_installation(tmp_path / "env") == ServerInstallation(program)
    assert ServerInstallation(program).variables() == {}
    assert not (tmp_path / "env").exists()


def test_a_broken_wheel_is_told(fake, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDependency, match=r"bin/tritonserver is missing; remove .* and try again"):
        find_installation(fake.behave())
