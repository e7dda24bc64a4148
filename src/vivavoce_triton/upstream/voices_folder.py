"""Voices from a folder of recordings: NAME.wav with its transcript in NAME.txt, or a list in `manifest.jsonl`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.samples import MAX_REFERENCE_S, Audio, Samples, check_reference
from vivavoce.frontend.voices.names import (
    MAX_LISTED,
    OPENAI_VOICES,
    NameRules,
    VoiceSummary,
    check_voice_name,
    folded,
    meant_by,
)
from vivavoce.lru_cache import LruCache
from vivavoce_bench.measure import read_lines
from vivavoce_textnorm import excerpt
from vivavoce_triton.client.utterance import NAME_FIELDS, REFERENCE_FIELDS, REFERENCE_TEXT_FIELDS, first_of
from vivavoce_triton.client.wire import at_reference_rate

log = logging.getLogger(__name__)

DEFAULT_VOICE = "default"
"""The name of the default recording."""
MANIFEST = "manifest.jsonl"
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
"""File types of recordings. If a name has several files, the first of these types is used."""
_KEPT = 64
"""Number of recordings to cache; 64 recordings of 30 s take 123 MB."""

_State = dict[str, tuple[int, int]]
"""File name → (time of the last change in ns since 1970, size in bytes)."""


@dataclass(frozen=True)
class FolderVoice:
    """A recording. transcript: "" if unknown; changed: time of the file's last change in ns since 1970."""

    name: str
    path: Path
    transcript: str
    changed: int


class VoicesFolder:
    """A folder of voices. It is read again after a file was added, removed or changed. For one thread at a time."""

    def __init__(self, folder: Path, rules: NameRules = NameRules()) -> None:
        """rules: for names that no recording has. InvalidRequest: the folder or its manifest cannot be used."""
        self.folder, self._rules = folder, rules
        self._decoded: LruCache[Samples] = LruCache(_KEPT)
        self._state = self._look()
        self._voices = self._read(self._state)

    def voices(self) -> list[VoiceSummary]:
        self._refresh()
        found = {
            name: VoiceSummary(name, "built_in", True, f"recording {voice.path.name}", voice.transcript)
            for name, voice in sorted(self._voices.items())
        }
        return [*found.values(), *self._rules.alias_summaries(found, found)]

    def find(self, name: str | None) -> tuple[Samples, str] | None:
        """Return a voice's recording, [n] float32 at 16 kHz, and its transcript; None if there is no such recording,
        and `name` is None or another name of the server's default voice.

        VoiceNotFound: the name is unknown; the error lists the known names. InvalidAudio: the recording cannot be used.
        """
        self._refresh()
        table, default = self._rules.table(sorted(self._voices)), self._rules.default or DEFAULT_VOICE
        voice = self._voices.get(meant_by(name or default, self._voices, table))
        if voice is None and self._rules.unknown == "default":
            voice = self._voices.get(default)
        if voice is not None:
            samples = self._decoded.get(
                (voice.path, voice.changed), lambda: usable_reference(voice.path, f"voice {voice.name}")
            )
            return samples, voice.transcript
        if name is not None and name not in OPENAI_VOICES:  # these names stand for the server's default voice
            raise unknown(name, sorted(self._voices))
        return None

    def _refresh(self) -> None:
        try:
            state = self._look()
            if state == self._state:
                return
            voices = self._read(state)
        except InvalidRequest as error:
            # A file that is being written can cause an error. Keep the voices that were read before.
            fields = {"error": error, "count": len(self._voices)}
            log.warning("voices damaged: %(error)s (keeping the %(count)d voices read before)", fields)
            return
        log.info("voices changed: %(folder)s has %(count)d voices", {"folder": self.folder, "count": len(voices)})
        self._voices, self._state = voices, state

    def _look(self) -> _State:
        try:
            with os.scandir(self.folder) as entries:
                found = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
        except OSError as error:
            raise InvalidRequest(
                f"reference_dir: {str(self.folder)!r} cannot be read ({error.strerror}); name a folder of recordings"
            ) from None
        return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in found}

    def _read(self, state: _State) -> dict[str, FolderVoice]:
        voices: dict[str, FolderVoice] = {}
        taken: dict[str, str] = {}
        for voice in self._manifest() if MANIFEST in state else self._pairs(state):
            other = taken.setdefault(folded(voice.name), voice.name)
            if voice.name in voices or other != voice.name:
                fields = {"file": voice.path, "other": other}
                log.warning("voice left out: %(file)s: there is a voice %(other)r already", fields)
            else:
                voices[voice.name] = voice
        return voices

    def _pairs(self, state: _State) -> Iterator[FolderVoice]:
        for suffix, file in product(SUFFIXES, state):
            stem, ending = os.path.splitext(file)
            if ending.lower() != suffix:
                continue
            try:
                name = check_voice_name(stem)
            except InvalidRequest as error:
                log.warning("voice left out: %(file)s: %(error)s", {"file": self.folder / file, "error": error})
                continue
            lines = read_lines(self.folder / f"{stem}.txt", "reference_dir") if f"{stem}.txt" in state else []
            yield FolderVoice(name, self.folder / file, "\n".join(lines).strip(), state[file][0])

    def _manifest(self) -> Iterator[FolderVoice]:
        for number, line in enumerate(read_lines(self.folder / MANIFEST, "reference_dir"), start=1):
            if not line.strip():
                continue
            where = f"reference_dir: line {number} of {MANIFEST}"
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                raise InvalidRequest(f"{where} is not JSON; write one object a line") from None
            if not isinstance(fields, dict):
                raise InvalidRequest(f"{where} is not a JSON object; write one object a line")
            name, file = first_of(fields, NAME_FIELDS), first_of(fields, REFERENCE_FIELDS)
            if not isinstance(name, str) or not isinstance(file, str):
                raise InvalidRequest(f"{where} lacks {NAME_FIELDS[0]} or {REFERENCE_FIELDS[0]}; write both")
            path, text = self.folder / file, first_of(fields, REFERENCE_TEXT_FIELDS)
            try:
                changed = path.stat().st_mtime_ns
            except (OSError, ValueError):
                raise InvalidRequest(f"{where} names {file!r}, which is not there; correct the path") from None
            yield FolderVoice(check_voice_name(name), path, text if isinstance(text, str) else "", changed)


def unknown(name: str, known: Sequence[str]) -> VoiceNotFound:
    listed = ", ".join(known[:MAX_LISTED]) + (" and more" if len(known) > MAX_LISTED else "")
    return VoiceNotFound(
        f"voice: {excerpt(name)} is not a recording of this server (known: {listed or 'none'}); name one of them"
    )


def usable_reference(source: Path | bytes, field: str, decode: Callable[..., Audio] = decode_audio) -> Samples:
    """Decode and check a recording: [n] float32, mono at 16 kHz, 0.5 to 30 s. Raises InvalidAudio."""
    # Limit the decoding, because in some formats a few bytes can hold hours of silence.
    audio = decode(source, field=field, max_seconds=MAX_REFERENCE_S)
    check_reference(audio, field=field)
    return at_reference_rate(audio)
