"""Audio output to a file or standard output, checked for writability before a model loads."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vivavoce.cli.console import is_terminal
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vivavoce.engine.request import Word
    from vivavoce.frontend.audio.encode import AudioFormat
    from vivavoce.frontend.speech import Mark
    from vivavoce.frontend.speech_result import Speech

STDOUT = "-"


@dataclass(frozen=True)
class Output:
    target: str
    stdout_format: str | None = None
    tagged: bool = True

    @property
    def label(self) -> str:
        return "stdout" if self.target == STDOUT else self.target

    def check(self) -> None:
        """Raise InvalidRequest if the target is a folder, a terminal or not writable, or its format is unknown."""
        _ = self.format
        if self.target != STDOUT:
            with explaining("output", self.label):
                check_writable(Path(self.target))
        elif sys.stdout is None or is_terminal(sys.stdout):
            raise InvalidRequest(
                "output: stdout is neither a file nor a pipe; "
                "add `| ffplay -nodisp -autoexit -`, or name a file with --out"
            )

    @property
    def format(self) -> AudioFormat:
        from vivavoce.frontend.audio.encode import format_of, parse_format

        if self.stdout_format is None:
            return format_of(self.target)
        if self.target != STDOUT:
            raise InvalidRequest("format: is for --out -; the suffix of a file's name tells its format")
        return parse_format(self.stdout_format, field="format").codec

    def write(self, speech: Speech) -> None:
        speech = speech if self.tagged else replace(speech, tag=None)
        if self.target != STDOUT:
            speech.save(self.target)
            return
        with explaining("output", self.label):
            sys.stdout.buffer.write(speech.to_bytes(self.format))
            sys.stdout.buffer.flush()

    @contextmanager
    def stream(self, sample_rate: int, model: str) -> Iterator[Callable[[NDArray[np.float32]], None]]:
        """Yield a function that encodes and writes samples [n]; an interrupted file is valid. model: name for a tag."""
        from vivavoce.frontend.audio.encode import open_encoder
        from vivavoce.frontend.audio.tag import new_tag

        tag = new_tag(model) if self.tagged else None
        with closing(open_encoder(self.format, sample_rate, tag=tag)) as encoder, self._opened() as file:

            def put(data: bytes) -> None:
                with explaining("output", self.label):
                    file.write(data)
                    file.flush()

            try:
                yield lambda samples: put(encoder.encode(samples))
            finally:
                put(encoder.finish())
                header = encoder.whole_header()
                if header and self.target != STDOUT and file.seekable():
                    with explaining("output", self.label):  # seeking flushes, which may fail on a full disk
                        file.seek(0)
                    put(header)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        if self.target == STDOUT:
            yield sys.stdout.buffer
            return
        with explaining("output", self.label):
            file = open(self.target, "wb")  # noqa: SIM115  (`explaining` is for errors of `open`, not of the block)
        try:
            yield file
        finally:
            with explaining("output", self.label):  # closing flushes, too
                file.close()


SRT, VTT, JSON = ".srt", ".vtt", ".json"


def check_subtitles(path: Path) -> None:
    if path.suffix.lower() not in (SRT, VTT, JSON):
        raise InvalidRequest(f"subtitles: {str(path)!r} does not end with {SRT}, {VTT} or {JSON}; choose one of these")
    with explaining("subtitles", str(path)):
        check_writable(path, field="subtitles")


def write_subtitles(path: Path, text: str, marks: Sequence[Mark], words: Sequence[Word]) -> None:
    """Write a subtitle per sentence if word times are known, else one per segment; to .json, write all times."""
    from vivavoce.frontend.subtitles import sentence_cues, to_srt, to_vtt

    cues = sentence_cues(text, words) if words else marks
    if path.suffix.lower() == JSON:
        times = {"segments": [asdict(mark) for mark in marks], "words": [asdict(word) for word in words]}
        content = json.dumps(times, ensure_ascii=False, indent=1) + "\n"
    else:
        content = to_srt(cues) if path.suffix.lower() == SRT else to_vtt(cues)
    with explaining("subtitles", str(path)):
        path.write_text(content, encoding="utf-8", newline="\n")


@contextmanager
def explaining(field: str, label: str) -> Iterator[None]:
    """Turn OSError into `InvalidRequest` about `field`; a broken pipe is passed on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidRequest(f"{field}: {label!r} cannot be written ({error.strerror}); choose another place") from None


def check_writable(path: Path, *, field: str = "output") -> None:
    """Check that a file can be written, without changing it. Otherwise InvalidRequest about `field`, or OSError."""
    if path.is_dir():
        raise InvalidRequest(f"{field}: {str(path)!r} is a folder; add a file name")
    if path.exists() and not os.access(path, os.W_OK):
        raise InvalidRequest(f"{field}: {str(path)!r} is write-protected; choose another path")
    if path.exists() and not path.is_file():
        return  # a device or a pipe: opening it could wait for a reader
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InvalidRequest(f"{field}: folder {str(folder)!r} does not exist; create it or choose another path")
    # Permissions are not enough (read-only mounts, quotas, the superuser): try with a real file.
    probe = folder / f".{secrets.token_hex(8)}.part"
    probe.touch(exist_ok=False)
    probe.unlink()
