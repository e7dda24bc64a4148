"""What a speech recogniser has to offer, and how audio is prepared for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest, VivavoceError

Samples = NDArray[np.float32]

SAMPLE_RATE = 16_000
"""Of all audio that a recogniser is given."""

_PAD_S = 0.2
_NOISE = 1e-4
_PEAK = 0.6
_SMALLEST_PEAK = 1e-3


class Recogniser(Protocol):
    """Writes down speech. Any object with this method will do."""

    def transcribe(self, samples: Samples) -> str:
        """The words that are heard; samples: [n] float32 in ±1 at 16 kHz. What it was given before must not matter."""
        ...


@runtime_checkable
class ClosedVocabulary(Protocol):
    """A recogniser that can be told what may be said."""

    def closed(self, sentences: Sequence[Sequence[str]]) -> Recogniser:
        """One that knows nothing but these sentences, each a list of words in lower case."""
        ...


@runtime_checkable
class Phonetic(Protocol):
    """A recogniser that hears phones and knows how words are pronounced."""

    def phones(self, samples: Samples) -> list[str]:
        """The phones that are heard, without silence and noise; samples as for `transcribe`."""
        ...

    def pronunciations(self, word: str) -> list[list[str]]:
        """The ways to pronounce a word in lower case; none if the recogniser does not know it."""
        ...


RecogniserFactory = Callable[[], Recogniser]
"""Makes a recogniser; each process that listens calls it once."""


@dataclass(frozen=True)
class NamedRecogniser:
    """A factory of the user's own, as "module:callable"; it is imported where it is called."""

    name: str

    def __call__(self) -> Recogniser:
        """Import the module, call the callable without arguments, and check what it gives.

        Raises:
            InvalidRequest: no such module or callable, it fails, or what it makes cannot transcribe.
        """
        module_name, _, attribute = self.name.partition(":")
        if not module_name or not attribute:
            raise InvalidRequest(f"recogniser: {self.name!r} is not of the form module:callable; name one such")
        try:
            factory = getattr(import_module(module_name), attribute)
        except ImportError as error:
            raise InvalidRequest(
                f"recogniser: {module_name!r} cannot be imported ({error}); check the name and what is installed"
            ) from error
        except AttributeError:
            raise InvalidRequest(
                f"recogniser: module {module_name!r} has no {attribute!r}; name a callable that makes the recogniser"
            ) from None
        try:
            recogniser = factory()
        except VivavoceError:
            raise
        except Exception as error:
            raise InvalidRequest(f"recogniser: {self.name} fails ({type(error).__name__}: {error}); mend it") from error
        if not callable(getattr(recogniser, "transcribe", None)):
            raise InvalidRequest(
                f"recogniser: {self.name} made a {type(recogniser).__name__}, which has no method transcribe; see "
                "docs/evaluation.md"
            )
        return recogniser


def prepare(samples: Samples, sample_rate: int) -> NDArray[np.int16]:
    """Audio as every recogniser gets it: [n] int16 at 16 kHz.

    0.2 s of silence on either side, noise of 1e-4 (the same for all audio: recognisers stumble over digital silence),
    the peak at 0.6.
    """
    import soxr

    wave = samples if sample_rate == SAMPLE_RATE else soxr.resample(samples, sample_rate, SAMPLE_RATE)
    wave = np.pad(np.asarray(wave, np.float32), round(_PAD_S * SAMPLE_RATE))
    wave = wave + _NOISE * np.random.default_rng(0).standard_normal(len(wave), dtype=np.float32)
    scale = _PEAK / max(float(np.abs(wave).max()), _SMALLEST_PEAK)
    return np.rint(wave * scale * 32767).astype(np.int16)


def as_floats(prepared: NDArray[np.int16]) -> Samples:
    """Prepared audio as `Recogniser.transcribe` takes it."""
    return prepared.astype(np.float32) / np.float32(32768)
