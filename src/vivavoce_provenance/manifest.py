"""Signed manifests in audio files, in the form of C2PA ("content credentials"), by the package c2pa-python."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from vivavoce.errors import InvalidAudio, InvalidRequest, MissingDependency
from vivavoce.files import replacing
from vivavoce.version import __version__

KINDS = {".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".m4a": "audio/mp4", ".m4b": "audio/mp4"}
_SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
_PROGRAM = {"name": "vivavoce", "version": __version__}
_CURVES = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
_UNTRUSTED = "signingCredential.untrusted"
"""C2PA's code for a signer that is not in a list of trusted signers. This program has no list, so it ignores the code.
"""


@dataclass(frozen=True)
class Manifest:
    """A file's manifest. intact: whether file and manifest are unchanged since they were signed. synthetic: whether it
    says that a machine made the audio. signer: the name in the certificate; nothing proves this name. program: name and
    version of the program that signed. problems: C2PA's codes of faults."""

    intact: bool
    synthetic: bool
    signer: str
    program: str
    problems: tuple[str, ...] = ()


def is_installed() -> bool:
    try:
        return bool(_c2pa())
    except MissingDependency:
        return False


def signer_of(certificate: Path, key: Path) -> Any:
    """Make a signer for `sign`. certificate: a chain in PEM, the signer's certificate first; key: the signer's private
    key in PEM, without a password. Raises InvalidRequest if these cannot be read, or do not belong together."""
    c2pa = _c2pa()
    chain, private = _content(certificate, "certificate"), _content(key, "key")
    info = c2pa.C2paSignerInfo(_algorithm(private).encode(), chain, private, None)
    try:
        return c2pa.Signer.from_info(info)
    except c2pa.C2paError as error:
        raise InvalidRequest(f"certificate: is refused ({_line(error)}); give a chain in PEM, and its key") from None


def sign(file: Path, signer: Any) -> None:
    """Put a manifest into the file, which says that a machine made the speech. The file is replaced atomically.

    Raises InvalidRequest if the format has no place for a manifest, or the signer is refused, and InvalidAudio if the
    file is damaged."""
    c2pa, kind = _c2pa(), _kind_of(file)
    action = {"action": "c2pa.created", "digitalSourceType": _SOURCE, "softwareAgent": _PROGRAM}
    claim = {
        "claim_generator_info": [_PROGRAM],
        "title": file.name,
        "assertions": [{"label": "c2pa.actions", "data": {"actions": [action]}}],
    }
    signed = io.BytesIO()
    try:
        with c2pa.Builder(claim) as builder:
            builder.sign(signer, kind, io.BytesIO(_content(file, "file")), signed)
    except c2pa.C2paError as error:
        reason = _line(error)
        if "ertificate" in reason or "ignature" in reason:
            raise InvalidRequest(
                f"certificate: cannot sign ({reason}); docs/provenance.md says what it needs"
            ) from None
        raise InvalidAudio(f"file: {file.name} cannot be signed ({reason}); its suffix must fit its audio") from None
    try:
        with replacing(file) as new:
            new.write(signed.getbuffer())
    except OSError as error:
        raise InvalidRequest(f"file: {file} cannot be written ({error.strerror}); choose another place") from None


def read_manifest(file: Path) -> Manifest | None:
    """Read a file's manifest; None if the file has no manifest, or its format has no place for a manifest."""
    if file.suffix.lower() not in KINDS:
        return None
    c2pa = _c2pa()
    try:
        with c2pa.Reader(_kind_of(file), io.BytesIO(_content(file, "file"))) as reader:
            store = json.loads(reader.json())
    except c2pa.C2paError.ManifestNotFound:
        return None
    except c2pa.C2paError as error:
        return Manifest(False, False, "", "", (_line(error),))
    active = store.get("manifests", {}).get(store.get("active_manifest"), {})
    generator = (active.get("claim_generator_info") or [{}])[0]
    actions = [one for part in active.get("assertions", ()) for one in part.get("data", {}).get("actions", ())]
    codes = [str(one.get("code")) for one in store.get("validation_status", ())]
    problems = tuple(code for code in codes if code != _UNTRUSTED)
    return Manifest(
        not problems,
        any(one.get("digitalSourceType") == _SOURCE for one in actions),
        str(active.get("signature_info", {}).get("common_name", "")),
        f"{generator.get('name', '')} {generator.get('version', '')}".strip(),
        problems,
    )


def _c2pa() -> ModuleType:
    try:
        import c2pa
    except ImportError:
        raise MissingDependency(
            "manifest: the package c2pa-python is missing; pip install 'vivavoce[c2pa]' brings it"
        ) from None
    return c2pa


def _kind_of(file: Path) -> str:
    if (kind := KINDS.get(file.suffix.lower())) is None:
        raise InvalidRequest(f"file: {file.name} has no place for a manifest; sign one of {', '.join(KINDS)}")
    return kind


def _content(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{field}: {path} cannot be read ({error.strerror}); give the path of a readable file"
        ) from None


def _algorithm(private: bytes) -> str:
    """Return C2PA's name of the algorithm with which a private key (PEM) signs."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private, None)
    except (ValueError, TypeError) as error:
        reason = "it has a password" if isinstance(error, TypeError) else "it is not in PEM"
        raise InvalidRequest(f"key: cannot be used ({reason}); give a private key in PEM without a password") from None
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return _CURVES[key.curve.name]
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "ed25519"
    if isinstance(key, rsa.RSAPrivateKey):
        return "ps256"
    raise InvalidRequest("key: its kind cannot sign manifests; make one of EC (P-256, P-384, P-521), Ed25519 or RSA")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
