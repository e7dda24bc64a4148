"""The server's images and compose files, as far as they can be checked without a container engine."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.deploy.test_triton_container import instructions, resolved
from vivavoce.doors.cli.main import app
from vivavoce.service.operations.settings import ServerSettings
from vivavoce.service.operations.settings_resolve import resolve_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"
COMPOSE_FOLDER = ROOT / "deploy" / "compose"
DOCKERFILES = {
    name: instructions((FOLDER / f"Dockerfile.{name}").read_text(encoding="utf-8")) for name in ("cpu", "cuda")
}
COMPOSE: dict[str, Any] = yaml.safe_load((COMPOSE_FOLDER / "server.yml").read_text(encoding="utf-8"))
GPU: dict[str, Any] = yaml.safe_load((COMPOSE_FOLDER / "gpu.yml").read_text(encoding="utf-8"))
SERVER: dict[str, Any] = COMPOSE["services"]["vivavoce"]
DOCS = (ROOT / "docs" / "cosyvoice-services.md").read_text(encoding="utf-8")
SET = ServerSettings().server


def arguments_of(name: str, word: str) -> list[str]:
    return [rest for instruction, rest in DOCKERFILES[name] if instruction == word]


def variables(name: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in arguments_of(name, "ENV") for pair in rest.split())


def parsed(words: list[str]) -> typer.Context:
    """The command line as the program reads it, without running it."""
    command = typer.main.get_command(app)
    assert words[0] in command.commands
    parent = command.make_context("vivavoce", list(words))
    return command.commands[words[0]].make_context(words[0], words[1:], parent=parent)


def settings_of(words: list[str], environment: dict[str, str]) -> ServerSettings:
    from vivavoce.doors.cli.serve_options import flags_layer

    assert words[0] == "serve"
    return resolve_settings(None, environment, flags_layer(parsed(words).params)).settings


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_base_is_pinned(name: str) -> None:
    assert DOCKERFILES[name][0][0] == "ARG"
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+", DOCKERFILES[name][0][1])
    assert DOCKERFILES[name][1] == ("FROM", "${PYTHON_IMAGE}")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_commands(name: str) -> None:
    for script in arguments_of(name, "RUN"):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)
        for words in (shlex.split(part) for part in script.split("&&")):
            if words[:2] == ["pip", "install"]:
                assert "--no-deps" in words[-2:] or {"--constraint", "constraints.txt"} <= set(words), words
        if "apt-get install" in script:
            assert "--no-install-recommends" in script
            assert script.endswith("rm -rf /var/lib/apt/lists/*")
    assert variables(name)["PIP_NO_CACHE_DIR"] == "1"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_copied_files_exist_and_reach_the_builder(name: str) -> None:
    patterns = (FOLDER / f"Dockerfile.{name}.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in patterns
    sent = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    copied = [source for rest in arguments_of(name, "COPY") for source in rest.split()[:-1]]
    assert {"src", "constraints.txt"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in sent), source
    assert set(sent) <= set(copied)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_change_of_the_source_installs_nothing_anew(name: str) -> None:
    steps = DOCKERFILES[name]
    source = steps.index(("COPY", "src ./src"))
    assert [rest for word, rest in steps[source:] if word == "RUN" and "pip" in rest] == ["pip install --no-deps ."]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11, which the image has")
def test_what_is_installed_are_the_servers_requirements() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name in DOCKERFILES:
        (script,) = (script for script in arguments_of(name, "RUN") if "requirements.py" in script)
        (chosen,) = re.findall(r"python requirements\.py ([\w ]+) >", script)
        found = subprocess.run(
            [sys.executable, FOLDER / "requirements.py", *chosen.split()],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        wanted = [*project["dependencies"], *extras["server"], *extras["redis"], *extras["telemetry"]]
        assert found.stdout.splitlines() == wanted


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_user_is_not_root_and_owns_what_it_writes(name: str) -> None:
    (user,) = arguments_of(name, "USER")
    (script,) = (script for script in arguments_of(name, "RUN") if "useradd" in script)
    assert f"useradd --create-home --uid 10001 {user}" in script
    (volumes,) = arguments_of(name, "VOLUME")
    assert json.loads(volumes) == ["/models", "/voices"]
    assert f"chown {user}:{user} /models /voices" in script
    words = [word for word, _ in DOCKERFILES[name]]
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_it_starts_by_itself_is_the_service_that_clients_look_for(name: str) -> None:
    (entry,), (command,) = arguments_of(name, "ENTRYPOINT"), arguments_of(name, "CMD")
    assert json.loads(entry) == ["vivavoce"]
    own = {key: value for key, value in variables(name).items() if key.startswith("VIVAVOCE_")}
    settings = settings_of(json.loads(command), own)
    assert (settings.server.host, settings.server.legacy, settings.server.legacy_port) == ("0.0.0.0", True, 50_000)
    assert settings.voices.place == "/voices"
    assert own["VIVAVOCE_HOME"] == "/models"
    (exposed,) = arguments_of(name, "EXPOSE")
    assert {int(port) for port in exposed.split()} == {settings.server.port, settings.server.legacy_port}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_health_check_asks_the_server(name: str) -> None:
    (health,) = arguments_of(name, "HEALTHCHECK")
    program = json.loads(health.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "health", "exec")
    assert f"http://127.0.0.1:{SET.port}/health/ready" in program[2]


def test_a_gpus_driver_and_a_compiler_are_there() -> None:
    assert variables("cuda")["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert any(" gcc " in script for script in arguments_of("cuda", "RUN"))
    assert not any("gcc" in script for script in arguments_of("cpu", "RUN"))


def documented() -> list[list[str]]:
    """The `docker run` lines of the documentation."""
    joined = re.sub(r"\\\n\s*", " ", DOCS)
    return [shlex.split(line) for line in joined.splitlines() if line.startswith("docker run")]


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_documented_runs(words: list[str]) -> None:
    (place,) = (place for place, word in enumerate(words) if word.startswith("vivavoce:"))
    image, command = words[place].partition(":")[2], words[place + 1 :]
    (default,) = arguments_of(image, "CMD")
    command = command or json.loads(default)
    given = dict(
        words[at + 1].split("=", 1) for at, word in enumerate(words[:place]) if word == "-e" and "=" in words[at + 1]
    )
    own = {key: value for key, value in variables(image).items() if key.startswith("VIVAVOCE_")}
    if command[0] != "serve":
        parsed(command)
        return
    server = settings_of(command, own | given).server
    inside = {int(words[at + 1].split(":")[1]) for at, word in enumerate(words[:place]) if word == "-p"}
    listened = {server.port, server.grpc_port} | ({server.legacy_port} if server.legacy else set())
    assert inside <= listened


def test_the_documents_show_both_services() -> None:
    commands = [" ".join(words) for words in documented()]
    assert any(line.endswith("vivavoce:cuda") and "-p 50000:50000" in line for line in commands)
    assert any("serve --grpc-port 50000" in line and "-p 50000:50000" in line for line in commands)


def test_compose_builds_the_images() -> None:
    for service, name in ((SERVER, "cpu"), (GPU["services"]["vivavoce"], "cuda")):
        assert (ROOT / service["build"]["dockerfile"]).samefile(FOLDER / f"Dockerfile.{name}")
        assert service["image"] == f"vivavoce:{name}"
    assert (COMPOSE_FOLDER / SERVER["build"]["context"]).resolve() == ROOT
    (device,) = GPU["services"]["vivavoce"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}


def test_compose_starts_what_the_command_line_knows() -> None:
    own = {key: value for key, value in variables("cpu").items() if key.startswith("VIVAVOCE_")}
    given = {key: resolved(value) for key, value in SERVER["environment"].items() if key.startswith("VIVAVOCE_")}
    settings = settings_of(SERVER["command"], own | given)
    assert (settings.model.model, settings.voices.place) == (None, "/voices")
    inside = {int(resolved(mapping).split(":")[1]) for mapping in SERVER["ports"]}
    assert inside == {settings.server.port, settings.server.legacy_port, settings.server.grpc_port}
    assert all(resolved(mapping).split(":")[0] == resolved(mapping).split(":")[1] for mapping in SERVER["ports"])
    seconds = int(SERVER["stop_grace_period"].rstrip("s"))
    assert seconds > settings.server.drain_s


def test_compose_knows_its_volumes_and_mounts_files_that_exist() -> None:
    named = set()
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE_FOLDER / source).exists(), source
            else:
                named.add(source)
    assert named == set(COMPOSE["volumes"])


def test_what_stands_beside_the_server_is_optional_and_pinned() -> None:
    beside = {name: service for name, service in COMPOSE["services"].items() if name != "vivavoce"}
    assert set(beside) == {"redis", "prometheus", "grafana"}
    for service in beside.values():
        assert service["profiles"]
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"])


def test_prometheus_and_grafana_find_their_way() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"vivavoce:{SET.port}"]}]
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    source = yaml.safe_load(next((provisioning / "datasources").glob("*.yml")).read_text(encoding="utf-8"))
    assert source["datasources"][0]["url"].startswith("http://prometheus:")
    boards = yaml.safe_load(next((provisioning / "dashboards").glob("*.yml")).read_text(encoding="utf-8"))
    path = boards["providers"][0]["options"]["path"]
    assert any(volume.split(":")[1].startswith(f"{path}/") for volume in COMPOSE["services"]["grafana"]["volumes"])


def test_the_documents_list_the_variables_of_compose() -> None:
    asked = set(re.findall(r"\$\{(\w+):-", (COMPOSE_FOLDER / "server.yml").read_text(encoding="utf-8")))
    table = DOCS.partition("| variable of compose |")[2]
    assert asked == set(re.findall(r"`([A-Z_]+)`", table))
