"""What is wrong with settings beyond each by itself: what contradicts, and what this machine does not have."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from vivavoce.errors import VivavoceError
from vivavoce.service.operations.keys_file import read_keys
from vivavoce.service.operations.settings import ServerSection, ServerSettings
from vivavoce.service.operations.settings_forms import is_address, is_loopback

OWN_MODELS = ("mini", "babble")
"""Models that the program brings along."""


def contradictions(settings: ServerSettings) -> Iterator[str]:
    """One line for each pair of settings that cannot both be; the line begins with a setting's name."""
    server, model = settings.server, settings.model
    ports = {"port": server.port}
    if server.legacy:
        ports["legacy_port"] = server.legacy_port
    if server.grpc_port is not None:
        ports["grpc_port"] = server.grpc_port
    taken: dict[int, str] = {}
    for name, port in ports.items():
        if port and port in taken:
            yield f"server.{name}: {port} is server.{taken[port]} already; give each its own"
        taken[port] = name
    if server.tls_certificate and not server.tls_key:
        yield "server.tls_certificate: has no key; give server.tls_key as well"
    if server.tls_key and not server.tls_certificate:
        yield "server.tls_key: has no certificate; give server.tls_certificate as well"
    if server.tls_client_ca and not (server.tls_certificate and server.tls_key):
        yield "server.tls_client_ca: the server has no certificate; give server.tls_certificate and server.tls_key"
    if server.reference_dir and not server.upstream:
        yield "server.reference_dir: is for a Triton server's voices; give server.upstream, or leave it out"
    if model.kernels is False:
        for name in ("deterministic", "int8_lm", "fp8_flow"):
            if getattr(model, name):
                yield f"model.{name}: needs kernels of our own; leave model.kernels out, or model.{name}"
    if server.metrics_key_required and not settings.auth.keys_file:
        yield "server.metrics_key_required: there are no keys; give auth.keys_file, or leave it out"
    if settings.voices.max_recording_bytes > server.max_body_bytes:
        yield (
            f"voices.max_recording_bytes: {settings.voices.max_recording_bytes} is more than "
            f"server.max_body_bytes, {server.max_body_bytes}; raise that, or lower this"
        )


def missing(settings: ServerSettings) -> Iterator[str]:
    """One line for each file or folder that is not there or not as it must be; takes a look, and changes nothing."""
    server = settings.server
    yield from _keys(settings.auth.keys_file)
    yield from tls_problems(server)
    if server.reference_dir and not server.reference_dir.is_dir():
        yield f"server.reference_dir: {server.reference_dir} is no folder; make it, or name another"
    if not server.upstream:
        yield from _model(settings.model.model)
        yield from _voices(settings.voices.place)


def advice(settings: ServerSettings) -> Iterator[str]:
    """One line for each thing that works and may not be meant."""
    server = settings.server
    if not settings.auth.keys_file and not is_loopback(server.host):
        yield f"whoever reaches {server.host} may ask this server; auth.keys_file makes it want keys"
    if settings.auth.keys_file and not server.tls_certificate and not is_loopback(server.host):
        yield "keys cross the network unencrypted; give server.tls_certificate, or put a proxy with TLS in front"
    if "*" in server.cors_origins and not settings.auth.keys_file:
        yield "any web page that a person opens may use this server; name pages in server.cors_origins"
    if settings.logging.log_text:
        yield "logs hold what is spoken (logging.log_text)"


def _keys(path: Path | None) -> Iterator[str]:
    if path is None:
        return
    try:
        read_keys(path)
    except VivavoceError as error:
        yield str(error)


def tls_problems(server: ServerSection) -> Iterator[str]:
    """One line for each of the server's certificates that cannot be used."""
    certificate, key, client_ca = server.tls_certificate, server.tls_key, server.tls_client_ca
    named = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": client_ca}
    problems = [_unreadable(f"server.{name}", path) for name, path in named.items() if path]
    if any(problems):
        yield from (problem for problem in problems if problem)
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if certificate and key:
            context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError, OSError) as error:
        yield f"server.tls_certificate: {certificate} and {key} are no pair ({_reason(error)}); give PEM files of one"
    try:
        if client_ca:
            context.load_verify_locations(client_ca)
    except (ssl.SSLError, ValueError, OSError) as error:
        yield f"server.tls_client_ca: {client_ca} holds no certificate ({_reason(error)}); give a PEM file"


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or type(error).__name__


def _unreadable(name: str, path: Path) -> str | None:
    if not path.is_file():
        return f"{name}: {path} is no file; make it, or name another"
    if not os.access(path, os.R_OK):
        return f"{name}: {path} cannot be read; check its permissions"
    return None


def _model(model: str | None) -> Iterator[str]:
    if model is None or (model in OWN_MODELS and not Path(model).is_dir()):
        return
    from vivavoce.checkpoint.hub.locate import find_model

    try:
        find_model(model)
    except VivavoceError as error:
        yield f"model.{error}"


def _voices(place: str | None) -> Iterator[str]:
    if place is None or is_address(place):
        return
    folder = Path(place)
    if folder.exists() and not folder.is_dir():
        yield f"voices.place: {place} is no folder; name one, or another place"
        return
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        yield f"voices.place: {nearest} cannot be written; check its permissions, or name another place"
