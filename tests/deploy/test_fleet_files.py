"""Compose files, Dockerfiles and proxies' configurations, each read by the program that they are for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.proxies import DEPLOY, ENVOY, MISSING, NGINX
from tests.deploy.test_containers import COMPOSE_FOLDER, FILES, own_variables, settings_of
from vivavoce.server.settings import ServerSettings
from vivavoce.server.settings_sources import unread_variables

COMPOSED = {
    "server": ["server.yml"],
    "server on a GPU": ["server.yml", "gpu.yml"],
    "server with CosyVoice's ports": ["server.yml", "cosyvoice.yml"],
    "fleet": ["fleet.yml"],
    "fleet on GPUs": ["fleet.yml", "fleet-gpu.yml"],
    "tritons": ["tritons.yml"],
    "triton": ["../triton/docker-compose.yml"],
}


def program(name: str) -> str:
    """Beside Python, as wheels install it, or on the path; skips without it."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def composed(files: list[str], folder: Path = COMPOSE_FOLDER, **variables: str) -> dict[str, Any]:
    """What Compose makes of the files, all profiles together, with nothing but these variables set outside."""
    words = [program("docker-compose"), "--profile", "*"]
    for name in files:
        words += ["-f", str(folder / name)]
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    found = subprocess.run([*words, "config"], capture_output=True, text=True, env=own | variables)
    assert (found.returncode, found.stderr) == (0, "")
    return yaml.safe_load(found.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("files", COMPOSED.values(), ids=COMPOSED)
def test_compose_takes_its_files(files: list[str]) -> None:
    config = composed(files)
    for name, service in config["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {port["host_ip"] for port in service.get("ports", ())} <= {"127.0.0.1"}, name
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind" and "references" not in volume["source"]:
                assert Path(volume["source"]).exists(), volume


@pytest.mark.parametrize("files", [["server.yml"], ["server.yml", "gpu.yml"], ["fleet.yml"]], ids=" ".join)
def test_settings_of_a_file_and_of_the_environment_reach_the_server(files: list[str], tmp_path: Path) -> None:
    lines = ("VIVAVOCE_ENGINE_SLOTS=7", "VIVAVOCE_VOICES_QUOTA=3", "HF_ENDPOINT=https://mirror.example.org", "GPUS=0,1")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    folder = tmp_path / "deploy" / "compose"
    (folder / ".env").write_text("\n".join(lines), encoding="utf-8")
    services = composed(files, folder, HF_TOKEN="secret", VIVAVOCE_MODEL="mine")["services"]
    for name in (name for name in services if name == "vivavoce" or name.startswith("vivavoce-")):
        environment = services[name]["environment"]
        own = {key: value for key, value in environment.items() if value and key.startswith("VIVAVOCE_")}
        assert list(unread_variables(own)) == []
        settings = settings_of(["serve"], own_variables("cpu") | own)
        assert (settings.engine.slots, settings.voices.quota, settings.model.model) == (7, 3, "mine")
        assert (environment["HF_TOKEN"], environment["HF_ENDPOINT"]) == ("secret", "https://mirror.example.org")
        assert settings.model.gpus == ("0,1" if "gpu.yml" in files else None)


@pytest.mark.parametrize("files", COMPOSED.values(), ids=COMPOSED)
def test_a_model_is_downloaded_once_for_all(files: list[str]) -> None:
    assert composed(files)["volumes"]["models"]["name"] == "vivavoce_models"


def test_a_fleet_has_the_servers_that_its_proxies_know() -> None:
    services = composed(["fleet.yml", "fleet-gpu.yml"])["services"]
    servers = sorted(name for name in services if name.startswith("vivavoce-"))
    devices = [services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for name in servers]
    assert devices == [["0"], ["1"], ["2"]]
    for name in servers:
        given = {k: v for k, v in services[name]["environment"].items() if k.startswith("VIVAVOCE_")}
        settings = settings_of(services[name]["command"], own_variables("cpu") | given).server
        assert (settings.port, settings.legacy_port, settings.grpc_port) == (8880, 50_000, 50_051)
        assert settings.legacy
        assert "ports" not in services[name]
    assert {port["target"] for port in services["nginx"]["ports"]} == {8880, 50_000, 50_051}
    assert services["envoy"]["ports"] == services["nginx"]["ports"]
    nginx = (DEPLOY / "nginx" / "nginx.conf").read_text(encoding="utf-8")
    envoy = (DEPLOY / "envoy" / "envoy.yaml").read_text(encoding="utf-8")
    for text in (nginx, envoy):
        assert sorted(set(re.findall(r"vivavoce-\d", text))) == servers
    limit = ServerSettings().server.max_body_bytes
    assert f"client_max_body_size {limit >> 20}m;" in nginx
    assert f"request_body_buffer_limit: {limit} " in envoy
    for image in (services["nginx"]["image"], services["envoy"]["image"]):
        assert re.search(r"\d+\.\d+\.\d+", image)
    assert services["redis"]["networks"].keys() == {"store"}


def test_tritons_are_reached_by_their_proxy_alone() -> None:
    services = composed(["tritons.yml"])["services"]
    bridge = services["vivavoce"]
    given = {k: v for k, v in bridge["environment"].items() if k.startswith("VIVAVOCE_")}
    assert settings_of(bridge["command"], own_variables("cpu") | given).server.upstream == "triton://envoy:8001"
    work = [
        [one["source"] for one in services[name]["volumes"] if one["target"] == "/work"]
        for name in ("triton-0", "triton-1")
    ]
    assert work == [["work"], ["work-1"]]
    for name in ("triton-0", "triton-1"):
        assert "ports" not in services[name]
        assert services[name]["networks"] == {"tritons": {"aliases": ["triton"]}}
    (config,) = [one["source"] for one in services["envoy"]["volumes"]]
    assert (DEPLOY / "kubernetes" / "tritons" / "envoy.yaml").samefile(config)


@pytest.mark.skipif("envoy" in MISSING, reason=MISSING.get("envoy", ""))
@pytest.mark.parametrize("path", ["envoy/envoy.yaml", "kubernetes/tritons/envoy.yaml"])
def test_envoy_takes_its_files(path: str) -> None:
    words = [ENVOY, "--mode", "validate", "-l", "warn", "-c", str(DEPLOY / path)]
    found = subprocess.run(words, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "deprecated" not in found.stderr.lower()


@pytest.mark.skipif("nginx" in MISSING, reason=MISSING.get("nginx", ""))
def test_nginx_takes_its_file(tmp_path: Path) -> None:
    text = (DEPLOY / "nginx" / "nginx.conf").read_text(encoding="utf-8")
    text = re.sub(r"vivavoce-\d:", "127.0.0.1:", text)  # names of other machines cannot be looked up here
    (tmp_path / "nginx.conf").write_text(text.replace("/tmp/nginx", f"{tmp_path}/nginx"), encoding="utf-8")
    found = subprocess.run([NGINX, "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "[warn]" not in found.stderr or "1.25" in found.stderr, found.stderr


@pytest.mark.parametrize("name", FILES)
def test_hadolint(name: str) -> None:
    # DL3008: a distribution's packages have no versions that last; the base image's own is exact.
    words = [program("hadolint"), "--no-color", "--ignore", "DL3008", str(FILES[name])]
    found = subprocess.run(words, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")
