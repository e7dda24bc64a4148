"""The speakers that a model folder brings along."""

from __future__ import annotations

from pathlib import Path

from vivavoce.checkpoint.folder import SPEAKERS
from vivavoce.service.voices.portable import voices_from_spk2info
from vivavoce.service.voices.voice import Voice


def built_in_voices(folder: Path) -> dict[str, Voice]:
    """The voices of the folder's spk2info.pt by name, in its order; none without the file."""
    path = folder / SPEAKERS
    if not path.is_file():
        return {}
    # They belong to the model by lying beside it: an older model's file may be moved on purpose, embeddings fit all.
    return {voice.name: voice for voice in voices_from_spk2info(path, fingerprint="")}
