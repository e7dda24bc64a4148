"""gRPC behind the server's certificate."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.doors.grpc.calling import METHOD, Office, audio, sft
from vivavoce.doors.grpc.tls import credentials
from vivavoce.errors import InvalidRequest
from vivavoce.service.operations.settings import ServerSection

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def certified(folder: Path) -> dict[str, Path]:
    """A certificate for 127.0.0.1 that signs itself, as settings."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return {"tls_certificate": certificate, "tls_key": key}


def ask(office: Office, client: grpc.ChannelCredentials | None) -> bytes:
    async def work() -> bytes:
        async with office.open() as (_, server):
            address = f"127.0.0.1:{server.port}"
            channel = grpc.aio.insecure_channel(address) if client is None else grpc.aio.secure_channel(address, client)
            async with channel:
                return b"".join([audio(answer) async for answer in channel.unary_stream(METHOD)(sft("Hello."))])

    return asyncio.run(asyncio.wait_for(work(), 60))


@needs_openssl
def test_with_a_certificate_nothing_is_said_in_the_clear(tmp_path: Path) -> None:
    files = certified(tmp_path)
    trusting = grpc.ssl_channel_credentials(files["tls_certificate"].read_bytes())
    assert len(ask(Office(options=files), trusting)) == 6 * 480
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask(Office(options=files), None)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@needs_openssl
def test_clients_may_have_to_show_a_certificate_too(tmp_path: Path) -> None:
    files = certified(tmp_path)
    certificate, key = (path.read_bytes() for path in files.values())
    options = {**files, "tls_client_ca": files["tls_certificate"]}
    shown = grpc.ssl_channel_credentials(certificate, key, certificate)
    assert len(ask(Office(options=options), shown)) == 6 * 480
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        ask(Office(options=options), grpc.ssl_channel_credentials(certificate))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("no certificate")
    files = {"tls_certificate": tmp_path / "tls.crt", "tls_key": tmp_path / "tls.key"}
    with pytest.raises(InvalidRequest, match="or the certificate and its key are no PEM files of a pair"):
        ask(Office(options=files), None)


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("")
    with pytest.raises(InvalidRequest, match="tls_key: is missing, and the other one is set"):
        credentials(ServerSection(tls_certificate=there))
    with pytest.raises(InvalidRequest, match="tls_certificate: is missing"):
        credentials(ServerSection(tls_key=there))
    with pytest.raises(InvalidRequest, match=r"tls_certificate: .*gone cannot be read"):
        credentials(ServerSection(tls_certificate=tmp_path / "gone", tls_key=there))
    assert credentials(ServerSection()) is None
