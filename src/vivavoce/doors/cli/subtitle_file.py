"""Where subtitles go: a file whose suffix says their format; found out to be writable before any model loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.doors.cli.output import check_writable
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.service.marks import Mark

SRT, VTT = ".srt", ".vtt"


@dataclass(frozen=True)
class SubtitleFile:
    """The value of `--subtitles`: a SubRip or WebVTT file."""

    target: str

    def check(self) -> None:
        """Refuse a file of another kind, or a place that cannot be written; what lies there is not touched.

        Raises:
            InvalidRequest: the suffix is neither .srt nor .vtt; a folder, or a place without permission.
        """
        if self._suffix not in (SRT, VTT):
            raise InvalidRequest(f"subtitles: {self.target!r} ends with neither {SRT} nor {VTT}; name a file that does")
        with self._explaining():
            check_writable(Path(self.target), field="subtitles")

    def write(self, marks: Sequence[Mark]) -> None:
        """Write the subtitles of a speech; InvalidRequest if the place cannot be written after all."""
        from vivavoce.service.subtitles import to_srt, to_vtt

        content = to_srt(marks) if self._suffix == SRT else to_vtt(marks)
        with self._explaining():
            Path(self.target).write_text(content, encoding="utf-8", newline="\n")

    @property
    def _suffix(self) -> str:
        return Path(self.target).suffix.lower()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidRequest(
                f"subtitles: {self.target!r} cannot be written ({error.strerror}); choose another place"
            ) from None
