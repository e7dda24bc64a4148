"""Settings that contradict one another, and what this machine lacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vivavoce.service.operations.settings import ServerSettings
from vivavoce.service.operations.settings_checks import advice, contradictions, missing
from vivavoce.service.operations.settings_resolve import try_settings


def settings(**sections: dict[str, Any]) -> ServerSettings:
    return ServerSettings.model_validate(sections)


def test_the_defaults_are_right() -> None:
    for find in (contradictions, missing, advice):
        assert list(find(ServerSettings())) == []


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"server": {"grpc_port": 8880}}, "server.grpc_port: 8880 is server.port already"),
        ({"server": {"legacy": True, "legacy_port": 1, "grpc_port": 1}}, "server.grpc_port: 1 is server.legacy_port"),
        ({"server": {"tls_certificate": "a.pem"}}, "server.tls_certificate: has no key"),
        ({"server": {"tls_key": "a.pem"}}, "server.tls_key: has no certificate"),
        ({"server": {"tls_client_ca": "a.pem"}}, "server.tls_client_ca: the server has no certificate"),
        ({"server": {"reference_dir": "a"}}, "server.reference_dir: is for a Triton server's voices"),
        ({"model": {"kernels": False, "int8_lm": True}}, "model.int8_lm: needs kernels"),
        ({"server": {"metrics_key_required": True}}, "server.metrics_key_required: there are no keys"),
        ({"server": {"max_body_bytes": 65_536}}, "voices.max_recording_bytes: 16777216 is more than"),
    ],
)
def test_what_contradicts(sections: dict[str, dict[str, Any]], line: str) -> None:
    (found,) = contradictions(settings(**sections))
    assert found.startswith(line)


@pytest.mark.parametrize(
    "server",
    [
        {"legacy": False, "legacy_port": 8880},
        {"legacy": True, "port": 0, "legacy_port": 0, "grpc_port": 0},
        {"upstream": "triton://gpu:8001", "reference_dir": "a"},
    ],
)
def test_what_does_not(server: dict[str, Any]) -> None:
    assert list(contradictions(settings(server=server))) == []


def test_a_contradiction_tells_where_it_comes_from() -> None:
    _, (problem,) = try_settings(None, {"VIVAVOCE_SERVER_GRPC_PORT": "8880"}, {})
    assert problem.startswith("server.grpc_port (VIVAVOCE_SERVER_GRPC_PORT): 8880 is server.port already")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = list(
        missing(
            settings(
                server={"tls_certificate": tmp_path / "a.pem", "tls_key": tmp_path},
                model={"model": "no-such-model"},
                auth={"keys_file": tmp_path / "keys.toml"},
                voices={"place": str(tmp_path / "file")},
            )
        )
    )
    begins = ("auth.keys_file: ", "server.tls_certificate: ", "server.tls_key: ", "model.model: ", "voices.place: ")
    assert len(found) == len(begins)
    for line, begin in zip(found, begins, strict=True):
        assert line.startswith(begin)
        assert "\n" not in line


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("nothing")
    server = dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca"), tmp_path / "a.pem")
    first, second = missing(settings(server=server))
    assert first.startswith("server.tls_certificate: ")
    assert "are no pair" in first
    assert second.startswith("server.tls_client_ca: ")


def test_places_that_will_do(tmp_path: Path, babble: Path) -> None:
    for place in (str(tmp_path), str(tmp_path / "new" / "folder"), "redis://host/0"):
        assert list(missing(settings(voices={"place": place}, model={"model": str(babble)}))) == []
    assert list(missing(settings(model={"model": "mini"}))) == []


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)  # the superuser may write everywhere
    (line,) = missing(settings(voices={"place": str(tmp_path / "new")}))
    assert line.startswith(f"voices.place: {tmp_path} cannot be written")


def test_with_a_server_elsewhere_no_model_is_needed(tmp_path: Path) -> None:
    upstream = {"upstream": "triton://gpu:8001", "reference_dir": tmp_path}
    assert list(missing(settings(server=upstream, model={"model": "no-such-model"}))) == []


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"server": {"host": "0.0.0.0"}}, "whoever reaches 0.0.0.0"),
        ({"server": {"host": "localhost.example.org"}}, "whoever reaches localhost.example.org"),
        ({"server": {"host": "::"}, "auth": {"keys_file": "k"}}, "unencrypted"),
        ({"server": {"cors_origins": ["*"]}}, "any web page"),
        ({"logging": {"log_text": True}}, "logs hold what is spoken"),
    ],
)
def test_advice(sections: dict[str, dict[str, Any]], words: str) -> None:
    (line,) = advice(settings(**sections))
    assert words in line


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost"])
def test_what_this_machine_alone_reaches_needs_no_keys(host: str) -> None:
    assert list(advice(settings(server={"host": host}))) == []
