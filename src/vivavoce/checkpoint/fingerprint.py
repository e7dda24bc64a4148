"""The identity of a model as far as voices depend on it.

A voice's features come out of the speech tokenizer, the speaker encoder and the mel settings. Two folders that
agree in these can share stored voices; a voice from another folder must be extracted anew.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from vivavoce.checkpoint.folder import SPEAKER_ENCODER
from vivavoce.errors import CheckpointError

_PATTERNS = (SPEAKER_ENCODER, "speech_tokenizer_v[0-9].onnx", "cosyvoice*.yaml")
_BLOCK_BYTES = 1 << 20
_HEX_DIGITS = 16


def fingerprint(folder: Path) -> str:
    """The identity of `folder` as 16 hexadecimal digits: a hash of the two ONNX files and the yaml file.

    The whole contents are read, about 0.5 GB of a release: 0.3 s at the 1.7 GB/s that one core hashes. It
    is computed at each load of a model and kept with it. Sizes and times of change are no substitute: a copied
    or restored file would change a voice's identity, or keep it wrongly.

    Raises:
        CheckpointError: one of the files is missing or cannot be read.
    """
    identity = hashlib.sha256()
    for pattern in _PATTERNS:
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise CheckpointError(f"model: {pattern} is missing in {folder.name}; download the whole folder")
        for path in paths:
            try:
                identity.update(f"{path.name}\0{sha256_of(path)}\n".encode())
            except OSError as error:
                raise CheckpointError(
                    f"model: {path.name} cannot be read ({error.strerror}); check the model folder"
                ) from None
    return identity.hexdigest()[:_HEX_DIGITS]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's contents in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
