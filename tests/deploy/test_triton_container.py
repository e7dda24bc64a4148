"""The container's files, as far as they can be checked without a container engine."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "triton"
IMAGE = "nvcr.io/nvidia/tritonserver:25.06-trtllm-python-py3"
KNOWN = {
    *("ARG", "FROM", "SHELL", "RUN", "COPY", "WORKDIR", "ENV", "USER"),
    *("EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
}
PORTS = {8000, 8001, 8002}


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


DOCKERFILE = instructions((FOLDER / "Dockerfile.server").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text(encoding="utf-8"))
TTS: dict[str, Any] = COMPOSE["services"]["tts"]


def arguments_of(word: str) -> list[str]:
    return [rest for name, rest in DOCKERFILE if name == word]


def bash_reads(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)


def resolved(value: str) -> str:
    """A compose value with nothing set outside: `${NAME:-default}` is its default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_only_known_instructions_and_a_pinned_base() -> None:
    assert {word for word, _ in DOCKERFILE} == KNOWN
    assert DOCKERFILE[:2] == [("ARG", f"TRITON_IMAGE={IMAGE}"), ("FROM", "${TRITON_IMAGE}")]
    assert "latest" not in IMAGE


@pytest.mark.parametrize("script", arguments_of("RUN"))
def test_commands(script: str) -> None:
    bash_reads(script)
    if "apt-get install" in script:
        assert "apt-get update" in script
        assert "--no-install-recommends" in script
        assert "--yes" in script
        assert script.endswith("rm -rf /var/lib/apt/lists/*")
    if "pip install" in script:
        assert "--no-cache-dir" in script
    assert "sudo" not in script


def test_copied_files_exist_and_reach_the_builder() -> None:
    patterns = (FOLDER / "Dockerfile.server.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    copied = [source for rest in arguments_of("COPY") for source in rest.split()[:-1] if not source.startswith("--")]
    assert "src" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in sent), source


def test_folders_are_absolute_and_the_user_is_not_root() -> None:
    assert all(path.startswith("/") for path in arguments_of("WORKDIR"))
    (user,) = arguments_of("USER")
    assert any(f"useradd --create-home --uid 10001 {user}" in script for script in arguments_of("RUN"))
    words = [word for word, _ in DOCKERFILE]
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN")


def test_ports_health_and_start() -> None:
    (exposed,) = arguments_of("EXPOSE")
    assert {int(port) for port in exposed.split()} == PORTS
    (health,) = arguments_of("HEALTHCHECK")
    assert json.loads(health.partition("CMD ")[2])[-1].endswith(":8000/v2/health/ready")
    (entry,), (command,) = arguments_of("ENTRYPOINT"), arguments_of("CMD")
    assert any(rest.endswith(json.loads(entry)[0]) for rest in arguments_of("COPY"))
    assert json.loads(command)[:2] == ["0", "3"]
    assert json.loads(command)[-2:] == ["--host", "0.0.0.0"]


def test_the_package_extras_exist() -> None:
    wanted = {name for script in arguments_of("RUN") for name in re.findall(r'"\.\[([\w-]+)\]"', script)}
    assert wanted == {"triton-client"}
    assert "\ntriton-client = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_compose() -> None:
    assert resolved(TTS["build"]["args"]["TRITON_IMAGE"]) == IMAGE
    build = TTS["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(FOLDER / "Dockerfile.server")
    assert {int(mapping.split(":")[0]) for mapping in TTS["ports"]} == PORTS
    assert all(mapping.split(":")[0] == mapping.split(":")[1] for mapping in TTS["ports"])
    assert TTS["shm_size"] == "1gb"
    (device,) = TTS["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    assert TTS["healthcheck"]["test"][-1] == "http://127.0.0.1:8000/v2/health/ready"
    assert {volume.split(":")[0] for volume in TTS["volumes"]} == set(COMPOSE["volumes"])
    assert all(isinstance(value, str) for value in TTS["command"])


def test_compose_starts_what_the_command_line_knows() -> None:
    import typer

    from vivavoce.doors.cli.triton import app

    known = {name for option in typer.main.get_command(app).params for name in option.opts}
    given = [resolved(word) for word in TTS["command"]]
    assert given[:2] == ["0", "3"]
    assert {word for word in given if word.startswith("--")} <= known


def test_the_script() -> None:
    script = FOLDER / "run.sh"
    bash_reads(script.read_text(encoding="utf-8"))
    assert script.stat().st_mode & 0o111 == 0o111


def test_the_script_passes_everything_on(tmp_path: Path) -> None:
    program = tmp_path / "vivavoce"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    found = subprocess.run(
        [FOLDER / "run.sh", "0", "3", "--target-text", "two words"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ["triton", "--stage", "0", "--stop-stage", "3", "--target-text", "two words"]
    assert found.stdout.splitlines() == expected


@pytest.mark.parametrize(("arguments", "message"), [(["0"], "usage: run.sh"), (["0", "1"], "vivavoce is not on PATH")])
def test_the_script_explains(tmp_path: Path, arguments: list[str], message: str) -> None:
    found = subprocess.run(
        [FOLDER / "run.sh", *arguments], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert message in found.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck() -> None:
    subprocess.run(["shellcheck", FOLDER / "run.sh"], check=True)


def _has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="docker compose is not installed")
def test_docker_reads_the_compose_file() -> None:
    subprocess.run(["docker", "compose", "-f", FOLDER / "docker-compose.yml", "config", "--quiet"], check=True)
