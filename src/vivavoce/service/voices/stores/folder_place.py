"""Namespaces in one folder."""

from __future__ import annotations

from pathlib import Path

from vivavoce.service.voices.store import VoiceStore
from vivavoce.service.voices.stores.owners import PUBLIC, namespace_id

OWNERS = "owners"
"""The folder of the owners' folders; no voice's file is called so, as all have a suffix."""


class FolderPlace:
    """Public voices are the folder's own; those of an owner lie in `owners/<SHA-256 of the owner>`, all mode 0700."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, owner: str) -> VoiceStore:
        """The owner's voices; "": the public ones."""
        if owner == PUBLIC:
            return VoiceStore(self._folder)
        return VoiceStore(self._folder / OWNERS / namespace_id(owner), within=self._folder)

    def state(self) -> str:
        """Tell "ok", or what is wrong with the folder."""
        return self.of(PUBLIC).state()

    def close(self) -> None:
        """Nothing is held open."""
