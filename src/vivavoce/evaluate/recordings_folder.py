"""The evaluated audio on disk, with a table from which it can be scored again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vivavoce.errors import InvalidRequest
from vivavoce.evaluate.audio_files import write_recording
from vivavoce.evaluate.report import write_text
from vivavoce.evaluate.speaking import UNNAMED, Clip
from vivavoce.evaluate.utterance import Utterance

TABLE = "utterances.tsv"
_LONGEST_NAME = 40


class RecordingsFolder:
    """Writes one WAV file per utterance and, at the end, `utterances.tsv`."""

    def __init__(self, folder: Path, *, by_voice: bool) -> None:
        """Make the folder; `InvalidRequest` if that fails.

        Args:
            folder: may exist; files of the same names are overwritten.
            by_voice: the files' names hold the voice, because several say the same.
        """
        self.folder, self._by_voice = folder, by_voice
        self._taken: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(
                f"out: folder {str(folder)!r} cannot be made ({error.strerror}); choose another place"
            ) from None

    def write(self, clip: Clip) -> str:
        """Write a clip and return its file's name."""
        stem = f"{clip.case.id}-{_as_name(clip.voice)}" if self._by_voice else clip.case.id
        name, number = f"{stem}.wav", 2
        while name in self._taken:
            name, number = f"{stem}-{number}.wav", number + 1
        self._taken.add(name)
        write_recording(self.folder / name, clip.samples, clip.sample_rate)
        return name

    def write_table(self, utterances: Sequence[Utterance]) -> None:
        """Write file name, text and voice of each utterance: what `read_audio_table` reads."""
        rows = [(one.audio or "", " ".join(one.text.split()), _anywhere(one.voice)) for one in utterances]
        write_text(self.folder / TABLE, "".join("\t".join(row) + "\n" for row in rows))


def _as_name(voice: str) -> str:
    return re.sub(r"[^\w-]+", "_", Path(voice).stem)[:_LONGEST_NAME]


def _anywhere(voice: str) -> str:
    """A reference recording's path from the root, so that it holds from the table's folder too; a name as it is."""
    if voice == UNNAMED:
        return ""
    return str(Path(voice).resolve()) if Path(voice).is_file() else voice
