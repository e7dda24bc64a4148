"""The certificate of a server, as gRPC takes it."""

from __future__ import annotations

from pathlib import Path

import grpc

from vivavoce.errors import InvalidRequest
from vivavoce.service.operations.settings import ServerSection


def credentials(server: ServerSection) -> grpc.ServerCredentials | None:
    """Those of the settings; None: it speaks in the clear.

    Raises:
        InvalidRequest: only one of certificate and key is set, or a file cannot be read.
    """
    certificate, key, client_ca = server.tls_certificate, server.tls_key, server.tls_client_ca
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        lacking = "tls_certificate" if certificate is None else "tls_key"
        raise InvalidRequest(f"{lacking}: is missing, and the other one is set; set both, or none")
    return grpc.ssl_server_credentials(
        [(_read("tls_key", key), _read("tls_certificate", certificate))],
        root_certificates=None if client_ca is None else _read("tls_client_ca", client_ca),
        require_client_auth=client_ca is not None,
    )


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{field}: {path} cannot be read ({error.strerror}); choose another file") from None
