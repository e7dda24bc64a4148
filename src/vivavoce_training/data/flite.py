"""flite, a small speech synthesiser from Carnegie Mellon University, called in its shared libraries through ctypes.

Its four voices of 16 kHz are `kal16` (diphones) and `awb`, `rms`, `slt` (statistical). Besides the samples it says
where each phone ends, so the corpus is labelled exactly and no aligner is needed.

C interface: flite 2.2, `flite.h`, `cst_wave.h`, `cst_voice.h`, `cst_item.h`. One process speaks one text at a time: the
voices keep the settings of the last call.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_short, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import MissingDependency
from vivavoce_training.data.store import PHONES

VOICES = ("kal16", "awb", "rms", "slt")
FLITE_RATE = 16_000
FOLDER_VARIABLE = "VIVAVOCE_FLITE"

_KAL16_HERTZ = 95.0
_KAL16_STRETCH = 1.1
"""The diphone voice's own settings, which are to be multiplied; the statistical voices know factors from 1 on."""
_SILENCE = 0
_PHONE_INDEX = {name: index for index, name in enumerate(PHONES)}
_LIBRARIES = ("flite", "flite_cmulex", "flite_usenglish", *(f"flite_cmu_us_{voice}" for voice in VOICES))
"""In the order in which they need one another."""
_SOUND_CARD = "libasound.so.2"
"""libflite.so is linked against it and never calls it here; a folder of unpacked packages may bring it along."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """Flite's speech for a text.

    samples: int16 [samples] at 16 kHz; phones: uint8 [phones], indices into `PHONES` (anything but a phone
    of English counts as silence); ends: float64 [phones], the second in which each phone ends, never decreasing.
    """

    samples: NDArray[np.int16]
    phones: NDArray[np.uint8]
    ends: NDArray[np.float64]


Synthesise = Callable[[str, str, float, float], Spoken | None]
"""(voice, text, factor on the pitch, factor on the durations) → speech; None for a text it cannot say."""


class _Wave(Structure):
    _fields_ = (
        ("type", c_char_p),
        ("sample_rate", c_int),
        ("num_samples", c_int),
        ("num_channels", c_int),
        ("samples", POINTER(c_short)),
    )


class _Voice(Structure):
    _fields_ = (("name", c_char_p), ("features", c_void_p))


class _VoiceData(Structure):
    """`cst_cg_db` of flite 2.2 as far as it matters, up to its end: 256 bytes on 64-bit machines."""

    _fields_ = (
        ("name", c_char_p),
        ("types", c_void_p),
        ("num_types", c_int),
        ("sample_rate", c_int),
        ("models", ctypes.c_byte * 216),
        ("has_melody", c_int),
        ("gain", c_float),
        ("freeable", c_int),
    )


_SIGNATURES = {
    "flite_init": (c_int, ()),
    "flite_synth_text": (c_void_p, (c_char_p, c_void_p)),
    "utt_wave": (POINTER(_Wave), (c_void_p,)),
    "utt_relation": (c_void_p, (c_void_p, c_char_p)),
    "relation_head": (c_void_p, (c_void_p,)),
    "item_next": (c_void_p, (c_void_p,)),
    "item_feat_string": (c_char_p, (c_void_p, c_char_p)),
    "item_feat_float": (c_float, (c_void_p, c_char_p)),
    "delete_utterance": (None, (c_void_p,)),
    "feat_set_float": (None, (c_void_p, c_char_p, c_float)),
    "feat_val": (c_void_p, (c_void_p, c_char_p)),
    "feat_set": (None, (c_void_p, c_char_p, c_void_p)),
    "val_inc_refcount": (c_void_p, (c_void_p,)),
    "val_cg_db": (POINTER(_VoiceData), (c_void_p,)),
    "cg_db_val": (c_void_p, (POINTER(_VoiceData),)),
}


class Flite:
    """The libraries loaded and the four voices registered; a call speaks one text."""

    def __init__(self, folder: Path | None = None) -> None:
        """Load from `folder`, else from where `VIVAVOCE_FLITE` points, else from the system.

        The folder holds the libraries, or is where a Debian package was unpacked (`dpkg -x libflite1_*.deb folder`).

        Raises:
            MissingDependency: a library is not there or cannot be loaded.
        """
        libraries = _load(folder or _folder_of_environment())
        self._c = libraries["flite"]
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments
        self._c.flite_init()
        self._libc = ctypes.CDLL(None)
        self._libc.srand.restype, self._libc.srand.argtypes = None, (c_uint,)
        self._libc.malloc.restype, self._libc.malloc.argtypes = c_void_p, (c_size_t,)
        self._voices = {voice: _register(libraries[f"flite_cmu_us_{voice}"], voice) for voice in VOICES}
        self._switch_off_melody("rms")

    def __call__(self, voice: str, text: str, pitch: float = 1.0, stretch: float = 1.0) -> Spoken | None:
        """Speak ASCII text with factors on the voice's pitch and durations; None where flite finds nothing to say.

        The same arguments give the same samples, whatever was said before.
        """
        features = self._voices[voice].contents.features
        if voice == "kal16":
            self._c.feat_set_float(features, b"duration_stretch", _KAL16_STRETCH * stretch)
            self._c.feat_set_float(features, b"int_f0_target_mean", _KAL16_HERTZ * pitch)
        else:
            self._c.feat_set_float(features, b"duration_stretch", stretch)
            self._c.feat_set_float(features, b"f0_shift", pitch)
        written = text.encode("ascii")
        self._libc.srand(zlib.crc32(written))  # the breath in the statistical voices comes from C's rand()
        utterance = self._c.flite_synth_text(written, self._voices[voice])
        if not utterance:
            return None
        try:
            return self._read(utterance)
        finally:
            self._c.delete_utterance(utterance)

    def _switch_off_melody(self, voice: str) -> None:
        """Leave the voice with the pitch model that the others have; its second one knows no factor.

        The voice's description lies in memory that cannot be written, so a copy takes its place. The library keeps
        the voice, and so the copy, to the end of the process; a second `Flite` finds it changed.
        """
        features = self._voices[voice].contents.features
        value = self._c.feat_val(features, b"cg_db")
        own = self._c.val_cg_db(value)
        if own.contents.sample_rate != FLITE_RATE or own.contents.has_melody not in (0, 1) or own.contents.freeable:
            raise MissingDependency(f"flite: its voice {voice} is not that of version 2.2; install libflite1 2.2")
        if not own.contents.has_melody:
            return
        size = ctypes.sizeof(_VoiceData)
        copy = ctypes.cast(self._libc.malloc(size), POINTER(_VoiceData))
        ctypes.memmove(copy, own, size)
        copy.contents.has_melody = 0
        self._c.val_inc_refcount(value)  # or flite would try to free the original, which is part of the library
        self._c.feat_set(features, b"cg_db", self._c.cg_db_val(copy))

    def _read(self, utterance: int) -> Spoken | None:
        wave = self._c.utt_wave(utterance)
        segments = self._c.utt_relation(utterance, b"Segment")
        if not wave or not segments or not wave.contents.num_samples:
            return None
        if wave.contents.sample_rate != FLITE_RATE or wave.contents.num_channels != 1:
            raise ValueError(
                f"flite: {wave.contents.num_channels} channels at {wave.contents.sample_rate} Hz, "
                f"not one at {FLITE_RATE}; use the 16 kHz voices of flite 2.2"
            )
        phones: list[int] = []
        ends: list[float] = []
        item = self._c.relation_head(segments)
        while item:
            name = self._c.item_feat_string(item, b"name")
            phones.append(_PHONE_INDEX.get(name.decode("ascii"), _SILENCE))
            ends.append(self._c.item_feat_float(item, b"end"))
            item = self._c.item_next(item)
        if not any(phones):
            return None
        samples = np.ctypeslib.as_array(wave.contents.samples, (wave.contents.num_samples,)).copy()
        return Spoken(samples, np.array(phones, np.uint8), np.maximum.accumulate(np.array(ends, np.float64)))


def _register(library: ctypes.CDLL, voice: str) -> ctypes._Pointer[_Voice]:
    register = getattr(library, f"register_cmu_us_{voice}")
    register.restype, register.argtypes = POINTER(_Voice), (c_char_p,)
    registered: ctypes._Pointer[_Voice] = register(None)
    return registered


def _folder_of_environment() -> Path | None:
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else None


def _load(folder: Path | None) -> dict[str, ctypes.CDLL]:
    """The libraries by name. Each is loaded for all, so that the next ones find it though no search path names it."""
    try:
        if folder is not None:
            found = _library_folder(folder)
            if (found / _SOUND_CARD).is_file():
                ctypes.CDLL(str(found / _SOUND_CARD), mode=ctypes.RTLD_GLOBAL)
            paths = {name: str(found / f"lib{name}.so.1") for name in _LIBRARIES}
        else:
            paths = {name: f"lib{name}.so.1" for name in _LIBRARIES}
        return {name: ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for name, path in paths.items()}
    except OSError as error:
        where = "the system" if folder is None else str(folder)
        raise MissingDependency(
            f"flite: its libraries cannot be loaded from {where} ({error}); run `apt-get install libflite1`, "
            f"or unpack that package and libasound2 (`dpkg -x`) into a folder that {FOLDER_VARIABLE} names"
        ) from error


def _library_folder(folder: Path) -> Path:
    """Where under `folder` libflite lies: there itself, or where Debian packages put libraries."""
    for candidate in (folder, *sorted(folder.glob("usr/lib/*-linux-gnu"))):
        if (candidate / "libflite.so.1").is_file():
            return candidate
    return folder
