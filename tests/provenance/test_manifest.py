"""Signed manifests: what is signed is found again, a change is noticed, and what cannot be signed is refused."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from vivavoce.cli.main import app
from vivavoce.errors import InvalidAudio, InvalidRequest, MissingDependency
from vivavoce.frontend.audio.encode import write_audio
from vivavoce.frontend.audio.tag import COMMENT, AudioTag
from vivavoce_provenance import manifest

RATE = 24_000
needs_c2pa = pytest.mark.skipif(find_spec("c2pa") is None, reason="c2pa-python is not installed")


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A chain of two certificates as C2PA wants them, and the signer's key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> x509.Name:
        parts = ((NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, "Example"))
        return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])

    def certificate(name: str, key: Any, number: int, *, is_root: bool) -> x509.CertificateBuilder:
        since = datetime(2026, 1, 1)
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
        usage |= {"digital_signature": not is_root, "key_cert_sign": is_root, "crl_sign": is_root}
        return (
            x509.CertificateBuilder(named("Root"), named(name), key.public_key(), number, since)
            .not_valid_after(since + timedelta(days=9_000))
            .add_extension(x509.BasicConstraints(is_root, None), True)
            .add_extension(x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )

    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = certificate("Root", root_key, 1, is_root=True).sign(root_key, SHA256())
    signer = (
        certificate("A Publisher", key, 2, is_root=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), False)
        .sign(root_key, SHA256())
    )
    folder = tmp_path_factory.mktemp("signing")
    (folder / "chain.pem").write_bytes(_pem(signer) + _pem(root))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "chain.pem", folder / "key.pem"


def audio_at(path: Path) -> Path:
    samples = (0.3 * np.sin(np.arange(4 * RATE) / 20)).astype(np.float32)
    write_audio(path, samples, RATE, tag=AudioTag("mini", "2026-01-31T12:00:00Z"))
    return path


@needs_c2pa
@pytest.mark.parametrize("suffix", ["wav", "mp3", "flac"])
def test_a_signed_file_tells_who_signed_it_and_keeps_its_tag(suffix: str, tmp_path: Path, signing: Any) -> None:
    file = audio_at(tmp_path / f"hello.{suffix}")
    assert manifest.read_manifest(file) is None
    manifest.sign(file, manifest.signer_of(*signing))
    found = manifest.read_manifest(file)
    assert found is not None
    assert (found.intact, found.synthetic, found.signer, found.problems) == (True, True, "A Publisher", ())
    assert found.program.startswith("vivavoce ")
    assert COMMENT.encode() in file.read_bytes()
    assert list(tmp_path.iterdir()) == [file]


@needs_c2pa
def test_a_change_is_noticed(tmp_path: Path, signing: Any) -> None:
    file = audio_at(tmp_path / "hello.wav")
    manifest.sign(file, manifest.signer_of(*signing))
    content = bytearray(file.read_bytes())
    content[5_000] ^= 1
    file.write_bytes(content)
    found = manifest.read_manifest(file)
    assert found is not None
    assert not found.intact
    assert "assertion.dataHash.mismatch" in found.problems


@needs_c2pa
def test_what_cannot_be_signed_is_refused_and_left_as_it_is(tmp_path: Path, signing: Any) -> None:
    chain, key = signing
    signer = manifest.signer_of(chain, key)
    with pytest.raises(InvalidRequest, match=r"file: hello\.opus has no place for a manifest"):
        manifest.sign(audio_at(tmp_path / "hello.opus"), signer)
    (damaged := tmp_path / "damaged.wav").write_bytes(b"RIFF")
    with pytest.raises(InvalidAudio, match=r"damaged\.wav cannot be signed"):
        manifest.sign(damaged, signer)
    assert damaged.read_bytes() == b"RIFF"
    with pytest.raises(InvalidRequest, match="key: cannot be used"):
        manifest.signer_of(chain, chain)
    with pytest.raises(InvalidRequest, match="certificate: "):
        manifest.sign(audio_at(tmp_path / "hello.wav"), manifest.signer_of(key, key))
    with pytest.raises(InvalidRequest, match=r"certificate: .* cannot be read"):
        manifest.signer_of(tmp_path / "none.pem", key)


@needs_c2pa
def test_the_commands_sign_and_tell(tmp_path: Path, signing: Any) -> None:
    file, (chain, key) = audio_at(tmp_path / "hello.wav"), signing
    signed = CliRunner().invoke(app, ["sign", str(file), "--certificate", str(chain), "--key", str(key)])
    assert signed.exit_code == 0, signed.output
    told = CliRunner().invoke(app, ["detect", str(file)])
    assert "manifest intact, synthetic speech, signed by 'A Publisher' with vivavoce" in told.output
    (entry,) = json.loads(CliRunner().invoke(app, ["detect", str(file), "--json"]).output)
    assert (entry["manifest"]["intact"], entry["manifest"]["signer"]) == (True, "A Publisher")


@pytest.mark.skipif(find_spec("c2pa") is not None, reason="c2pa-python is installed")
def test_without_the_package_the_way_out_is_told(tmp_path: Path) -> None:
    asked = ["sign", str(audio_at(tmp_path / "a.wav")), "--certificate", "chain.pem", "--key", "key.pem"]
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, MissingDependency)
    assert "pip install 'vivavoce[c2pa]'" in str(result.exception)
