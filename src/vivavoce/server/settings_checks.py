"""Checks of settings against each other, and against the files and folders of this machine."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from vivavoce.checkpoint.known_models import WrittenModel, find_model, parse_model
from vivavoce.engine.backends import backend_problems
from vivavoce.errors import VivavoceError
from vivavoce.frontend.model_choice import is_packaged
from vivavoce.server.keys import read_keys
from vivavoce.server.served_models import contradictory_models, further_sections
from vivavoce.server.setting_kinds import is_address, is_loopback
from vivavoce.server.settings import ServerSection, ServerSettings
from vivavoce_textnorm import read_lexicons


def contradictions(settings: ServerSettings) -> Iterator[str]:
    """Yield a line for each contradiction between settings; it begins with a setting's name."""
    server, model = settings.server, settings.model
    taken: dict[int, str] = {}
    for name in ("port", *(["legacy_port"] if server.legacy else []), "grpc_port", "wyoming_port", "health_port"):
        if (port := getattr(server, name)) in taken:
            yield f"server.{name}: {port} is server.{taken[port]} already; give each its own"
        elif port:
            taken[port] = name
    paired = bool(server.tls_certificate and server.tls_key)
    if server.tls_certificate and not paired:
        yield "server.tls_certificate: has no key; give server.tls_key as well"
    if server.tls_key and not paired:
        yield "server.tls_key: has no certificate; give server.tls_certificate as well"
    if server.tls_client_ca and not paired:
        yield "server.tls_client_ca: the server has no certificate; give server.tls_certificate and server.tls_key"
    if server.reference_dir and not server.upstream:
        yield "server.reference_dir: is for a Triton server's voices; give server.upstream, or leave it out"
    if model.kernels is False and model.deterministic:
        yield "model.deterministic: needs kernels of our own; leave model.kernels out, or model.deterministic"
    yield from (f"model.{problem}" for problem in backend_problems(model))
    yield from contradictory_models(settings)
    if len(model.adapters) > model.max_adapters:
        more = f"{len(model.adapters)} are more than model.max_adapters, {model.max_adapters}"
        yield f"model.adapters: {more}; raise that, or name fewer"
    if (model.adapters or model.adapters_dir) and model.lm_backend != "torch":
        yield f"model.lm_backend: {model.lm_backend} runs no adapters; choose torch, or leave the adapters out"
    others = {"device": model.device != "auto", "engines": model.engines > 1, "tp": model.tp > 1, "pp": model.pp > 1}
    for name in (name for name, given in others.items() if given and model.gpus is not None):
        yield f"model.gpus: {model.gpus} gives each GPU one engine of its own; leave it or model.{name} out"
    if server.metrics_key_required and not settings.auth.keys_file:
        yield "server.metrics_key_required: there are no keys; give auth.keys_file, or leave it out"
    if server.wyoming_port is not None and bool(settings.auth.keys_file) is not bool(server.wyoming_key):
        yield (
            "server.wyoming_port: its clients send no keys, but this server needs them; name one in server.wyoming_key"
            if settings.auth.keys_file
            else "server.wyoming_key: there are no keys; give auth.keys_file, or leave it out"
        )
    if (recording := settings.voices.max_recording_bytes) > (body := server.max_body_bytes):
        more = f"{recording} is more than server.max_body_bytes, {body}"
        yield f"voices.max_recording_bytes: {more}; raise that, or lower this"


def missing(settings: ServerSettings) -> Iterator[str]:
    """Yield a line for each file or folder that is missing or unusable; change nothing."""
    server, model = settings.server, settings.model.model
    try:
        if settings.auth.keys_file is not None:
            read_keys(settings.auth.keys_file)
    except VivavoceError as error:
        yield str(error)
    try:
        read_lexicons(settings.model.lexicons)
    except VivavoceError as error:
        yield f"model.{error}"
    yield from tls_problems(server)
    if server.reference_dir and not server.reference_dir.is_dir():
        yield f"server.reference_dir: {server.reference_dir} is not a folder; make it, or name another"
    folders = {f"adapters: {name!r}:": folder for name, folder in settings.model.adapters.items()}
    for label, folder in {**folders, "adapters_dir:": settings.model.adapters_dir}.items():
        if folder is not None and not folder.is_dir():
            yield f"model.{label} {folder} is not a folder; make it, or name another"
    if server.upstream:
        return
    yield from _model_problems("model.", parse_model(model or "mini"))
    for name, section in further_sections(settings).items():
        yield from _model_problems(f"models.more.{name}: ", parse_model(section.model or "mini"))
    yield from _voice_problems(settings.voices.place)


def advice(settings: ServerSettings) -> Iterator[str]:
    server, keys, reachable = settings.server, settings.auth.keys_file, not is_loopback(settings.server.host)
    if not keys and reachable:
        yield f"everyone who reaches {server.host} may use this server; auth.keys_file makes it require keys"
    if keys and not server.tls_certificate and reachable:
        yield "keys cross the network unencrypted; give server.tls_certificate, or put a proxy with TLS in front"
    if "*" in server.cors_origins and not keys:
        yield "any web page that a person opens may use this server; name pages in server.cors_origins"
    if settings.model.lexicons and server.upstream:
        yield "the Triton server reads texts by itself; model.lexicons changes nothing"
    if settings.models.more and server.upstream:
        yield "the Triton server speaks with its own model; models.more changes nothing"
    if settings.models.more and not settings.voices.keep_recordings:
        yield "stored voices will fit the default model alone (voices.keep_recordings)"
    if settings.logging.log_text:
        yield "logs hold what is spoken (logging.log_text)"


def _model_problems(at: str, written: WrittenModel) -> Iterator[str]:
    """Yield the problems of a model in the settings. at: the prefix of each message, such as "model."."""
    try:
        written.check_file()
        if not is_packaged(written.model):
            find_model(written.model)
    except VivavoceError as error:
        yield f"{at}{error}"


def tls_problems(server: ServerSection) -> Iterator[str]:
    certificate, key, client_ca = server.tls_certificate, server.tls_key, server.tls_client_ca
    unreadable = False
    for name, path in {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": client_ca}.items():
        if path and not (path.is_file() and os.access(path, os.R_OK)):
            unreadable = True
            problem = "cannot be read; check its permissions"
            yield f"server.{name}: {path} {problem if path.is_file() else 'is not a file; make it, or name another'}"
    if unreadable:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate and key:
        try:
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (ValueError, OSError) as error:
            reason = _reason(error)
            yield f"server.tls_certificate: {certificate} and {key} do not match ({reason}); give PEM files of one"
    if client_ca:
        try:
            context.load_verify_locations(client_ca)
        except (ValueError, OSError) as error:
            yield f"server.tls_client_ca: {client_ca} holds no certificate ({_reason(error)}); give a PEM file"


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or type(error).__name__


def _voice_problems(place: str | None) -> Iterator[str]:
    if place is None or is_address(place):
        return
    folder = Path(place)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if folder.exists() and not folder.is_dir():
        yield f"voices.place: {place} is not a folder; name one, or another place"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        yield f"voices.place: {nearest} cannot be written; check its permissions, or name another place"
