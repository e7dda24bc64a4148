"""The built-in recogniser: PocketSphinx with the English models that its wheel carries."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vivavoce.errors import MissingDependency
from vivavoce.evaluate.bigram import bigram_arpa
from vivavoce.evaluate.recogniser import SAMPLE_RATE, Samples
from vivavoce.evaluate.wording import words

if TYPE_CHECKING:
    from pocketsphinx import Decoder

_NO_PHONES = frozenset({"SIL", "+BREATH+", "+COUGH+", "+NOISE+", "+NSN+", "+SMACK+", "+SPN+", "+UH+"})
_PHONE_BEAM = 1e-20
_PHONE_WEIGHT = 2.0
"""What PocketSphinx's documentation advises for loops of phones."""


class PocketSphinx:
    """English of a large vocabulary (trigram), of the listed sentences alone (`closed`), or phone by phone."""

    def __init__(self) -> None:
        """Load the large vocabulary; `MissingDependency` without the package."""
        self._decoder = _decoder(dict="cmudict-en-us.dict", lm="en-us.lm.bin")

    def transcribe(self, samples: Samples) -> str:
        """See `Recogniser`."""
        return _transcript(self._decoder, samples)

    def closed(self, sentences: Sequence[Sequence[str]]) -> ClosedSphinx:
        """See `ClosedVocabulary`; words that are not in its dictionary are left out."""
        known = [[word for word in sentence if self._pronunciation(word)] for sentence in sentences]
        return ClosedSphinx(known)

    def phones(self, samples: Samples) -> list[str]:
        """See `Phonetic`; the 39 phones of the CMU dictionary."""
        _decode(self._phone_loop, samples)
        return [segment.word for segment in self._phone_loop.seg() or () if segment.word not in _NO_PHONES]

    def pronunciations(self, word: str) -> list[list[str]]:
        """See `Phonetic`."""
        ways, written = [], word
        while (way := self._pronunciation(written)) is not None:
            ways.append(way.split())
            written = f"{word}({len(ways) + 1})"
        return ways

    def _pronunciation(self, word: str) -> str | None:
        return self._decoder.lookup_word(word)

    @cached_property
    def _phone_loop(self) -> Decoder:
        return _decoder(allphone="en-us-phone.lm.bin", lw=_PHONE_WEIGHT, beam=_PHONE_BEAM, pbeam=_PHONE_BEAM)


class ClosedSphinx:
    """PocketSphinx that knows certain sentences only, by a bigram of their words."""

    def __init__(self, sentences: Sequence[Sequence[str]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "closed.lm")
            with open(path, "w", encoding="utf-8") as file:
                file.write(bigram_arpa(sentences))
            self._decoder = _decoder(dict="cmudict-en-us.dict", lm=path)

    def transcribe(self, samples: Samples) -> str:
        """See `Recogniser`."""
        return _transcript(self._decoder, samples)


def _decoder(**settings: Any) -> Decoder:
    """A decoder; file names are those of the wheel's model folder, or absolute.

    `cmn=batch` normalises each utterance by itself: by default the decoder carries a running mean over from what it
    heard before, and figures would depend on the order of the utterances.
    """
    try:
        import pocketsphinx
    except ImportError:
        raise MissingDependency(
            "recogniser: pocketsphinx is not installed; pip install 'vivavoce[eval]', or name another with --recogniser"
        ) from None
    models = os.path.join(pocketsphinx.get_model_path(), "en-us")
    for name in ("dict", "lm", "allphone"):
        if name in settings:
            settings[name] = os.path.join(models, settings[name])
    return pocketsphinx.Decoder(
        hmm=os.path.join(models, "en-us"), samprate=SAMPLE_RATE, cmn="batch", loglevel="FATAL", **settings
    )


def _decode(decoder: Decoder, samples: Samples) -> None:
    pcm = np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    decoder.start_utt()
    decoder.process_raw(pcm, no_search=False, full_utt=True)
    decoder.end_utt()


def _transcript(decoder: Decoder, samples: Samples) -> str:
    _decode(decoder, samples)
    best = decoder.hyp()
    return " ".join(words(best.hypstr)) if best else ""
