"""Writes a corpus utterance by utterance, so that it need not fit into memory; `store.py` says what lies where."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from training.data.render import Utterance
from training.data.store import Corpus, Speaker, write_index


class CorpusWriter:
    """Appends utterances to a folder; nothing can be opened there before `finish`."""

    def __init__(self, folder: Path, speakers: list[Speaker]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._speakers = folder, speakers
        self._wav = _GrowingArray(folder / "wav.npy", np.int16)
        self._phones = _GrowingArray(folder / "phones.npy", np.uint8)
        self._num_tokens = 0
        self._lengths: list[int] = []
        self._speaker: list[int] = []
        self._texts: list[str] = []

    @property
    def num_tokens(self) -> int:
        """Speech tokens so far."""
        return self._num_tokens

    @property
    def num_utterances(self) -> int:
        """Utterances so far."""
        return len(self._texts)

    def append(self, utterance: Utterance, speaker: int, text: str) -> None:
        """Add an utterance; `speaker` is an index into the speakers."""
        self._wav.append(utterance.wav)
        self._phones.append(utterance.phones)
        self._num_tokens += utterance.num_tokens
        self._lengths.append(utterance.num_tokens)
        self._speaker.append(speaker)
        self._texts.append(text)

    def finish(self) -> Corpus:
        """Write what is left and open the corpus."""
        self._wav.finish()
        self._phones.finish()
        return write_index(self._folder, self._lengths, self._speaker, self._texts, self._speakers)

    def close(self) -> None:
        """Close the files, and leave away what is not finished."""
        self._wav.close()
        self._phones.close()


class _GrowingArray:
    """A one-dimensional .npy file whose length is filled in at the end, under another name until then."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        self._temporary = path.with_name(f".{path.name}.part")
        self._file: BinaryIO = self._temporary.open("wb")
        self._length = 0
        self._header_bytes = self._write_header()

    def append(self, values: NDArray[np.generic]) -> None:
        self._file.write(values.astype(self._dtype, casting="no", copy=False).data)
        self._length += len(values)

    def finish(self) -> None:
        self._file.seek(0)
        if self._write_header() != self._header_bytes:
            raise ValueError(f"{self._path}: the header of {self._length} values is longer than that of none")
        self._file.close()
        self._temporary.replace(self._path)

    def close(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _write_header(self) -> int:
        """The header for the length so far; numpy leaves room in it for longer ones."""
        described = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, described | {"shape": (self._length,)})
        return self._file.tell()
