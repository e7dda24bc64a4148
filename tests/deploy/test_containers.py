"""The images and compose files of server and Triton, as far as they can be checked without a container engine."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from vivavoce.cli.main import app
from vivavoce.cli.serve import flag_values
from vivavoce.server.settings import ServerSettings
from vivavoce.server.settings_sources import SETTINGS, resolve_settings, unread_variables

ROOT = Path(__file__).parents[2]
DOCKER, TRITON, COMPOSE_FOLDER = (ROOT / "deploy" / name for name in ("docker", "triton", "compose"))
FILES = {
    "cpu": DOCKER / "Dockerfile.cpu",
    "cuda": DOCKER / "Dockerfile.cuda",
    "triton": TRITON / "Dockerfile.server",
}
SERVERS = ("cpu", "cuda")
TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
TRITON_PORTS = {8000, 8001, 8002}
DOCS = (ROOT / "docs" / "from-cosyvoice.md").read_text(encoding="utf-8")
SET = ServerSettings().server


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def compose(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


DOCKERFILES = {name: instructions(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
COMPOSE, GPU, COSYVOICE = (compose(COMPOSE_FOLDER / f"{name}.yml") for name in ("server", "gpu", "cosyvoice"))
TRITON_COMPOSE = compose(TRITON / "docker-compose.yml")
SERVER: dict[str, Any] = COMPOSE["services"]["vivavoce"]
TTS: dict[str, Any] = TRITON_COMPOSE["services"]["tts"]


def arguments_of(name: str, word: str) -> list[str]:
    return [rest for instruction, rest in DOCKERFILES[name] if instruction == word]


def variables(name: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in arguments_of(name, "ENV") for pair in rest.split())


def own_variables(name: str) -> dict[str, str]:
    return {key: value for key, value in variables(name).items() if key.startswith("VIVAVOCE_")}


def default(value: str) -> str:
    """A compose value with nothing set outside: `${NAME:-default}` is its default, the innermost first."""
    while (simpler := re.sub(r"\$\{\w+:-([^{}]*)\}", r"\1", value)) != value:
        value = simpler
    return value


def parsed(words: list[str]) -> typer.Context:
    """The command line as the program reads it, without running it."""
    command = typer.main.get_command(app)
    assert words[0] in command.commands
    parent = command.make_context("vivavoce", list(words))
    return command.commands[words[0]].make_context(words[0], words[1:], parent=parent)


def settings_of(words: list[str], environment: dict[str, str]) -> ServerSettings:
    assert words[0] == "serve"
    return resolve_settings(None, environment, flag_values(parsed(words).params)).settings


@pytest.mark.parametrize("name", DOCKERFILES)
def test_base_commands_and_user(name: str) -> None:
    (_, base), source = DOCKERFILES[name][:2]
    variable, _, image = base.partition("=")
    assert source == ("FROM", f"${{{variable}}}")
    assert image == TRITON_IMAGE if name == "triton" else re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", image)
    for script in arguments_of(name, "RUN"):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)
        if "apt-get install" in script:
            assert "--no-install-recommends" in script
            assert script.endswith("rm -rf /var/lib/apt/lists/*")
        for words in (shlex.split(part) for part in script.split("&&")):
            if name in SERVERS and words[:2] == ["pip", "install"]:
                assert "--no-deps" in words[-2:] or {"--constraint", "constraints.txt"} <= set(words), words
    assert "PIP_NO_CACHE_DIR" in variables(name) or "--no-cache-dir" in str(arguments_of(name, "RUN"))
    assert arguments_of(name, "USER") == ["10001"], "by its number, which runAsNonRoot needs"
    assert any("useradd --create-home --uid 10001 vivavoce" in script for script in arguments_of(name, "RUN"))
    (label,) = arguments_of(name, "LABEL")
    told = dict(re.findall(r'org[.]opencontainers[.]image[.](\w+)="([^"]+)"', label))
    assert {"title", "description", "licenses", "version", "revision"} == set(told)
    words_of = [word for word, _ in DOCKERFILES[name]]
    assert words_of.index("USER") > max(place for place, word in enumerate(words_of) if word == "RUN")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_copied_files_exist_and_reach_the_builder(name: str) -> None:
    patterns = FILES[name].with_name(f"{FILES[name].name}.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in patterns
    sent = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    copied = [part for rest in arguments_of(name, "COPY") for part in rest.split()[:-1] if not part.startswith("--")]
    assert "src" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in sent), source


@pytest.mark.parametrize("name", SERVERS)
def test_a_change_of_the_source_installs_nothing_anew(name: str) -> None:
    source = DOCKERFILES[name].index(("COPY", "src ./src"))
    later = [rest for word, rest in DOCKERFILES[name][source:] if word == "RUN" and "pip" in rest]
    assert later == ["pip install --no-deps ."]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11, which the image has")
def test_what_is_installed_are_the_servers_requirements() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for name in SERVERS:
        (script,) = (script for script in arguments_of(name, "RUN") if "requirements.py" in script)
        (chosen,) = re.findall(r"python requirements\.py ([\w -]+) >", script)
        found = subprocess.run(
            [sys.executable, DOCKER / "requirements.py", *chosen.split()],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        wanted = [*project["dependencies"], *extras["server"], *extras["redis"], *extras["telemetry"]]
        bridge = extras["triton-client"] if name == "cpu" else []  # `serve --upstream` needs no GPU
        assert found.stdout.splitlines() == [*wanted, *bridge]


@pytest.mark.parametrize("name", SERVERS)
def test_an_image_starts_the_service_that_clients_look_for(name: str) -> None:
    (entry,), (command,) = arguments_of(name, "ENTRYPOINT"), arguments_of(name, "CMD")
    assert json.loads(entry) == ["vivavoce"]
    own = own_variables(name)
    settings = settings_of(json.loads(command), own)
    assert (settings.server.host, settings.server.legacy, settings.server.legacy_port) == ("0.0.0.0", True, 50_000)
    assert (settings.voices.place, own["VIVAVOCE_HOME"]) == ("/voices", "/models")
    (volumes,) = arguments_of(name, "VOLUME")
    assert json.loads(volumes) == ["/models", "/voices"]
    assert any("chown vivavoce:vivavoce /models /voices" in script for script in arguments_of(name, "RUN"))
    (exposed,) = arguments_of(name, "EXPOSE")
    assert {int(port) for port in exposed.split()} == {settings.server.port, settings.server.legacy_port}
    (health,) = arguments_of(name, "HEALTHCHECK")
    program = json.loads(health.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "health", "exec")
    assert f"http://127.0.0.1:{SET.port}/health/ready" in program[2]
    is_cuda = name == "cuda"  # Triton's compiler of kernels needs another one
    assert any(" gcc " in script for script in arguments_of(name, "RUN")) is is_cuda
    assert (variables(name).get("NVIDIA_DRIVER_CAPABILITIES") == "compute,utility") is is_cuda


def documented() -> list[list[str]]:
    """The `docker run` lines of the documentation."""
    joined = re.sub(r"\\\n\s*", " ", DOCS)
    return [shlex.split(line) for line in joined.splitlines() if line.startswith("docker run")]


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_documented_runs(words: list[str]) -> None:
    (place,) = (place for place, word in enumerate(words) if word.startswith("vivavoce:"))
    image, command = words[place].partition(":")[2], words[place + 1 :]
    command = command or json.loads(arguments_of(image, "CMD")[0])
    given = dict(
        words[at + 1].split("=", 1) for at, word in enumerate(words[:place]) if word == "-e" and "=" in words[at + 1]
    )
    own = own_variables(image)
    if command[0] != "serve":
        parsed(command)
        return
    server = settings_of(command, own | given).server
    inside = {int(words[at + 1].split(":")[1]) for at, word in enumerate(words[:place]) if word == "-p"}
    listened = {server.port, server.grpc_port} | ({server.legacy_port} if server.legacy else set())
    assert inside <= listened


def published(words: list[str]) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == "-p"]


def test_what_is_published_is_for_this_machine_until_an_address_is_named() -> None:
    readme = re.sub(r"\\\n\s*", " ", (TRITON / "README.md").read_text(encoding="utf-8"))
    triton = [shlex.split(line) for line in readme.splitlines() if line.startswith("docker run")]
    ports = [port for words in [*documented(), *triton] for port in published(words)]
    for file in (COMPOSE, GPU, COSYVOICE, TRITON_COMPOSE):
        ports += [default(port) for service in file["services"].values() for port in service.get("ports", ())]
    assert len(ports) > 8
    assert all(port.startswith("127.0.0.1:") for port in ports), ports


def test_containers_write_where_they_should_and_gain_no_rights() -> None:
    """Files are read here: whether images whose programs are others' start like this was not tried."""
    for name, service in {**COMPOSE["services"], "triton": TTS}.items():
        assert service["read_only"] is True, name
        assert service["tmpfs"].startswith("/tmp:"), name
        assert "size=" in service["tmpfs"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.fullmatch(r"\d+g", default(service["mem_limit"])), name
        assert 0 < service["pids_limit"] <= 8192, name
        assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(service), name
        assert service.get("network_mode") in (None, "none"), name


def same_on_both_sides(ports: list[str]) -> set[int]:
    """The ports of a service, which has the same outside."""
    pairs = [default(mapping).split(":")[1:] for mapping in ports]
    assert all(outside == inside for outside, inside in pairs)
    return {int(inside) for _, inside in pairs}


def takes_one_gpu(service: dict[str, Any]) -> bool:
    return bool(devices_of(service) == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]})


def devices_of(service: dict[str, Any]) -> dict[str, Any]:
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    return dict(devices)


def test_compose_builds_the_images_and_what_stands_beside_them_is_optional_and_pinned() -> None:
    for service, name in ((SERVER, "cpu"), (GPU["services"]["vivavoce"], "cuda")):
        assert (ROOT / service["build"]["dockerfile"]).samefile(DOCKER / f"Dockerfile.{name}")
        assert service["image"] == f"vivavoce:{name}"
    assert (COMPOSE_FOLDER / SERVER["build"]["context"]).resolve() == ROOT
    assert devices_of(GPU["services"]["vivavoce"]) == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert set(COSYVOICE["services"]) == set(GPU["services"]) == {"vivavoce"}
    beside = {name: service for name, service in COMPOSE["services"].items() if name not in ("vivavoce", "keys")}
    assert set(beside) == {"redis", "prometheus", "grafana"}
    assert all(service["profiles"] for service in beside.values())
    assert all(re.search(r":v?\d+\.\d+\.\d+", service["image"]) for service in beside.values())
    sources = [volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service["volumes"]]
    assert all((COMPOSE_FOLDER / source).exists() for source in sources if source.startswith("."))
    assert {source for source in sources if not source.startswith(".")} == set(COMPOSE["volumes"])


def test_compose_starts_what_the_command_line_knows() -> None:
    own = own_variables("cpu")
    given = {
        key: default(value) for key, value in SERVER["environment"].items() if value and key.startswith("VIVAVOCE_")
    }
    settings = settings_of(SERVER["command"], own | given)
    assert (settings.model.model, settings.voices.place, settings.auth.keys_file) == (None, "/voices", None)
    server = settings.server
    assert (server.legacy, server.grpc_port) == (False, None)
    assert same_on_both_sides(SERVER["ports"]) == {server.port}
    assert int(SERVER["stop_grace_period"].rstrip("s")) > server.drain_s
    more = COSYVOICE["services"]["vivavoce"]
    chosen = settings_of(SERVER["command"], own | given | more["environment"]).server
    assert chosen.legacy
    assert same_on_both_sides(more["ports"]) == {chosen.legacy_port, chosen.grpc_port}


def test_keys_are_made_in_a_container_of_their_own_and_read_by_the_server() -> None:
    keys = COMPOSE["services"]["keys"]
    assert (keys["profiles"], keys["image"], keys["network_mode"]) == (["keys"], SERVER["image"], "none")
    place = keys["environment"]["VIVAVOCE_AUTH_KEYS_FILE"]
    assert (keys["volumes"], f"KEYS_FILE={place}" in DOCS) == (["keys:/keys"], True)
    assert "keys:/keys:ro" in SERVER["volumes"]
    assert parsed([*keys["entrypoint"][1:], "add", "team-a"])
    for name in SERVERS:
        assert any("chown vivavoce:vivavoce /models /voices /keys" in script for script in arguments_of(name, "RUN"))


def test_the_store_without_a_password_is_reached_by_the_server_alone() -> None:
    assert COMPOSE["networks"] == {"store": {"internal": True}}
    with_store = {name for name, service in COMPOSE["services"].items() if "store" in service.get("networks", ())}
    assert with_store == {"vivavoce", "redis"}
    assert COMPOSE["services"]["redis"]["networks"] == ["store"]
    assert "ports" not in COMPOSE["services"]["redis"]


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
    files = "".join(path.read_text(encoding="utf-8") for path in COMPOSE_FOLDER.glob("*.yml"))
    asked = set(re.findall(r"\$\{(\w+):-", files)) - {setting.variable for setting in SETTINGS.values()}
    asked -= {"VIVAVOCE_MODEL", "VIVAVOCE_VOICES"}
    table = DOCS.partition("| variable of compose |")[2]
    assert asked == set(re.findall(r"`([A-Z_]+)`", table.partition("\n\n")[0]))


def test_triton_ports_health_start_and_extras() -> None:
    (exposed,), (health,) = arguments_of("triton", "EXPOSE"), arguments_of("triton", "HEALTHCHECK")
    assert {int(port) for port in exposed.split()} == TRITON_PORTS
    assert json.loads(health.partition("CMD ")[2])[-1].endswith(":8000/v2/health/ready")
    (entry,), (command,) = arguments_of("triton", "ENTRYPOINT"), arguments_of("triton", "CMD")
    assert any(rest.endswith(json.loads(entry)[0]) for rest in arguments_of("triton", "COPY"))
    assert json.loads(command)[:2] == ["0", "3"]
    assert json.loads(command)[-2:] == ["--host", "0.0.0.0"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11, which the image has")
def test_triton_requirements_admit_the_image_s_own_torch() -> None:
    (script,) = (script for script in arguments_of("triton", "RUN") if "requirements.py" in script)
    (line,) = re.findall(r"python3 (requirements\.py triton-client \|.*?) > requirements.txt", script)
    line = f"{shlex.quote(sys.executable)} deploy/docker/{line}"
    found = subprocess.run(["bash", "-ec", line], cwd=ROOT, check=True, capture_output=True, text=True)
    wanted = found.stdout.splitlines()
    assert [one for one in wanted if one.startswith("torch")] == ["torch>=2.10.0a0"]
    assert any(one.startswith("tritonclient") for one in wanted)


def test_triton_compose() -> None:
    build = TTS["build"]
    assert default(build["args"]["TRITON_IMAGE"]) == TRITON_IMAGE
    assert (TRITON / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(FILES["triton"])
    assert same_on_both_sides(TTS["ports"]) == TRITON_PORTS
    assert TTS["shm_size"] == "1gb"
    assert takes_one_gpu(TTS)
    assert TTS["healthcheck"]["test"][-1] == "http://127.0.0.1:8000/v2/health/ready"
    assert {volume.split(":")[0] for volume in TTS["volumes"]} == set(TRITON_COMPOSE["volumes"])
    given = [default(word) for word in TTS["command"]]
    assert given[:2] == ["0", "3"]
    command = typer.main.get_command(app).commands["triton"].loaded  # type: ignore[attr-defined]
    assert {word for word in given if word.startswith("--")} <= {name for one in command.params for name in one.opts}


def test_triton_script_passes_everything_on_and_explains(tmp_path: Path) -> None:
    script = TRITON / "run.sh"
    assert script.stat().st_mode & 0o111 == 0o111
    program = tmp_path / "vivavoce"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)

    def run(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(script), *arguments], env={"PATH": f"{path}/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )

    found = run("0", "3", "--target-text", "two words", path=f"{tmp_path}:")
    assert found.stdout.splitlines() == ["triton", "--stage", "0", "--stop-stage", "3", "--target-text", "two words"]
    for arguments, message in ((["0"], "usage: run.sh"), (["0", "1"], "vivavoce is not on PATH")):
        found = run(*arguments)
        assert found.returncode == 2
        assert message in found.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck() -> None:
    subprocess.run(["shellcheck", TRITON / "run.sh"], check=True)


UNIT = ROOT / "deploy" / "systemd" / "vivavoce.service"


def test_a_unit_of_systemd_is_confined_and_waits_for_the_drain(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8")
    lines = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
    unit = {name: value for name, value in lines if name != "Environment"}
    given = dict(value.split("=", 1) for name, value in lines if name == "Environment")
    assert list(unread_variables(given)) == []
    settings = settings_of(["serve"], given)
    assert settings.logging.format == "json"
    assert int(unit["TimeoutStopSec"]) > settings.server.drain_s
    assert unit["ExecReload"] == "/bin/kill -HUP $MAINPID"
    for name in ("ExecStartPre", "ExecStart"):
        program, *words = shlex.split(unit[name])
        assert Path(program).name == "vivavoce"
        assert parsed(words)
        assert words[-1 if name == "ExecStart" else -2] == "/etc/vivavoce/vivavoce.toml"
    assert all(
        place.startswith(unit["WorkingDirectory"]) for place in (given["VIVAVOCE_HOME"], given["VIVAVOCE_VOICES"])
    )
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing; the unit was read only")
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/vivavoce/bin/vivavoce", sys.executable), encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    offline = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", copy]
    assert subprocess.run(offline, capture_output=True).returncode == 0, "an exposure above 2.0 of 10"
