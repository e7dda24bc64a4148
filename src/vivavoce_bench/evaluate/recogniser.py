"""Speech recognition: the interface, PocketSphinx, Whisper, and recognition in several processes."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.child import python_command
from vivavoce.errors import InvalidRequest, MissingDependency, VivavoceError
from vivavoce_bench.evaluate.error_rate import phone_errors, words
from vivavoce_bench.evaluate.speaking import Samples

if TYPE_CHECKING:
    from pocketsphinx import Decoder


SAMPLE_RATE = 16_000


class Recogniser(Protocol):
    """Transcribes speech. Three more methods are optional; `PocketSphinx` has them.

    `closed(sentences)` returns a recogniser that recognises only the words in these lists of words; `phones(samples)`
    recognises phones; `pronunciations(word)` returns the pronunciations of a lower-case word, empty if it is unknown.
    """

    def transcribe(self, samples: Samples) -> str:
        """Return the words of samples, [n] float32 in ±1 at 16 kHz. Earlier audio must not change the result."""
        ...


RecogniserFactory = Callable[[], Recogniser]
"""Makes a recogniser, once per process. With several processes the factory must be picklable, and defined in a module
that they can import, not in the program's script."""


def recogniser_named(name: str) -> RecogniserFactory:
    """Return the user's factory "module:callable"; the module is imported when the factory is called."""
    return partial(_named, name)


def _named(name: str) -> Recogniser:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidRequest(f"recogniser: {name!r} is not of the form module:callable; give such a name")
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
    recogniser: Recogniser = _guarded(name, factory)
    if not callable(getattr(recogniser, "transcribe", None)):
        raise InvalidRequest(
            f"recogniser: {name} made a {type(recogniser).__name__}, which has no method transcribe; see "
            "docs/measuring.md"
        )
    return recogniser


def _guarded(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except VivavoceError:
        raise
    except Exception as error:
        raise InvalidRequest(f"recogniser: {name} fails ({type(error).__name__}: {error}); correct it") from error


_PAD_S = 0.2
_NOISE = 1e-4
_PEAK = 0.6
_SMALLEST_PEAK = 1e-3


def prepare(samples: Samples, sample_rate: int) -> NDArray[np.int16]:
    """Convert audio for recognisers: [n] int16 at 16 kHz, with a peak of 0.6 and 0.2 s of silence on both sides.

    Noise of 1e-4 is added, the same to all audio, because recognisers make errors on digital silence.
    """
    import soxr

    wave = samples if sample_rate == SAMPLE_RATE else soxr.resample(samples, sample_rate, SAMPLE_RATE)
    wave = np.pad(np.asarray(wave, np.float32), round(_PAD_S * SAMPLE_RATE))
    wave = wave + _NOISE * np.random.default_rng(0).standard_normal(len(wave), dtype=np.float32)
    scale = _PEAK / max(float(np.abs(wave).max()), _SMALLEST_PEAK)
    return np.rint(wave * scale * 32767).astype(np.int16)


def as_floats(prepared: NDArray[np.int16]) -> Samples:
    """Convert to [n] float32 in ±1."""
    return prepared.astype(np.float32) / np.float32(32768)


_NO_PHONES = frozenset({"SIL", "+BREATH+", "+COUGH+", "+NOISE+", "+NSN+", "+SMACK+", "+SPN+", "+UH+"})
_PHONE_BEAM = 1e-20
_PHONE_WEIGHT = 2.0
"""Language weight for phone recognition, from PocketSphinx's documentation."""


class _Sphinx:
    def __init__(self, vocabulary: str) -> None:
        self._decoder = _decoder(dict="cmudict-en-us.dict", lm=vocabulary)

    def transcribe(self, samples: Samples) -> str:
        _decode(self._decoder, samples)
        best = self._decoder.hyp()
        return " ".join(words(best.hypstr)) if best else ""


class PocketSphinx(_Sphinx):
    """Recognises English words of a large vocabulary (trigram), only words of given sentences (`closed`), or phones."""

    def __init__(self) -> None:
        """Load the large vocabulary. `MissingDependency`: the package is not installed."""
        super().__init__("en-us.lm.bin")

    def closed(self, sentences: Sequence[Sequence[str]]) -> Recogniser:
        """Make a recogniser with a bigram of these sentences only, without words that are not in the dictionary."""
        known = [[word for word in one if self._decoder.lookup_word(word)] for one in sentences]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "closed.lm")
            with open(path, "w", encoding="utf-8") as file:
                file.write(bigram_arpa(known))
            return _Sphinx(path)

    def phones(self, samples: Samples) -> list[str]:
        _decode(self._phone_loop, samples)
        return [segment.word for segment in self._phone_loop.seg() or () if segment.word not in _NO_PHONES]

    def pronunciations(self, word: str) -> list[list[str]]:
        """Return all pronunciations of a lower-case word; empty if the word is not in the dictionary."""
        ways, written = [], word
        while (way := self._decoder.lookup_word(written)) is not None:
            ways.append(way.split())
            written = f"{word}({len(ways) + 1})"
        return ways

    @cached_property
    def _phone_loop(self) -> Decoder:
        return _decoder(allphone="en-us-phone.lm.bin", lw=_PHONE_WEIGHT, beam=_PHONE_BEAM, pbeam=_PHONE_BEAM)


def _decoder(**settings: Any) -> Decoder:
    """Make a decoder. File names are absolute, or relative to the wheel's model folder.

    `cmn=batch` normalises each utterance separately. The default is a running mean over earlier audio, so that results
    would depend on the order of the utterances.
    """
    try:
        import pocketsphinx
    except ImportError:
        raise MissingDependency(
            "recogniser: pocketsphinx is not installed; pip install 'vivavoce[eval]', or name another with --recogniser"
        ) from None
    models = os.path.join(pocketsphinx.get_model_path(), "en-us")
    for name in settings.keys() & {"dict", "lm", "allphone"}:
        settings[name] = os.path.join(models, settings[name])
    return pocketsphinx.Decoder(
        hmm=os.path.join(models, "en-us"), samprate=SAMPLE_RATE, cmn="batch", loglevel="FATAL", **settings
    )


def _decode(decoder: Decoder, samples: Samples) -> None:
    pcm = np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    decoder.start_utt()
    decoder.process_raw(pcm, no_search=False, full_utt=True)
    decoder.end_utt()


START, END = "<s>", "</s>"
_DISCOUNT = 0.3
"""Absolute discount: it is subtracted from each pair's count, and divided among the pairs that do not occur."""
_NEVER = -99.0
"""The value that stands for the logarithm of zero in ARPA files."""
_ROUNDING = 1e-9
"""Maximum probability left for back-off that counts as zero: if all words occur after a word, only a rounding error is
left."""


def bigram_arpa(sentences: Iterable[Sequence[str]]) -> str:
    """Make an ARPA bigram with absolute discounting (Ney, Essen and Kneser 1994). A sentence is a list of words.

    Unigram counts are increased by 1. The probabilities of all successors of a word sum to 1.
    """
    framed = [[START, *sentence, END] for sentence in sentences]
    occurrences = Counter(word for sentence in framed for word in sentence)
    pairs = Counter(pair for sentence in framed for pair in pairwise(sentence))
    total = sum(count + 1 for word, count in occurrences.items() if word != START)  # no pair ends with the start symbol
    single = {word: (count + 1) / total for word, count in occurrences.items() if word != START}
    lines = ["\\data\\", f"ngram 1={len(occurrences)}", f"ngram 2={len(pairs)}", "", "\\1-grams:"]
    pair_lines = ["", "\\2-grams:"]
    for word in sorted(occurrences):
        after = {second: count for (first, second), count in sorted(pairs.items()) if first == word}
        left = 1 - sum(single[second] for second in after)
        times = sum(after.values())
        backoff = math.log10(_DISCOUNT * len(after) / times / left) if after and left > _ROUNDING else 0.0
        lines.append(f"{math.log10(single[word]) if word in single else _NEVER:.6f} {word} {backoff:.6f}")
        pair_lines += [
            f"{math.log10((count - _DISCOUNT) / times):.6f} {word} {second}" for second, count in after.items()
        ]
    return "\n".join([*lines, *pair_lines, "", "\\end\\", ""])


@dataclass(frozen=True, eq=False)
class Task:
    """One utterance: audio from `prepare`, and the expected words or characters."""

    wave: NDArray[np.int16]
    said: tuple[str, ...]


@dataclass(frozen=True)
class Heard:
    """Results for an utterance. closed, phones: None if the recogniser lacks the method. Spaces separate phones."""

    free: str
    closed: str | None
    phones: str | None
    phone_errors: int = 0
    num_phones: int = 0
    unknown: frozenset[str] = frozenset()
    """Expected words that are not in the recogniser's vocabulary."""


def unknown_words(recogniser: Recogniser, sentence: Iterable[str]) -> list[str]:
    """Return the words that the recogniser does not know; none if the recogniser has no `pronunciations`."""
    if not hasattr(recogniser, "pronunciations"):
        return []
    return [word for word in sentence if not recogniser.pronunciations(word)]


def listen(
    tasks: Sequence[Task], factory: RecogniserFactory, jobs: int = 1, show: Callable[[int], None] = lambda _: None
) -> list[Heard]:
    """Transcribe all utterances with every method of the recogniser. `closed` gets the words of all tasks.

    jobs: number of recogniser processes (1: this process); show: called with the number of finished tasks.
    `InvalidRequest`: the recogniser fails, or a process of it ends early.
    """
    sentences = sorted({task.said for task in tasks})
    if jobs <= 1 or len(tasks) <= 1:
        return _listen_to(tasks, factory, sentences, show)
    jobs = min(jobs, len(tasks))
    heard: list[Heard | None] = [None] * len(tasks)
    with ThreadPoolExecutor(jobs) as threads:
        shares = {threads.submit(_listen_apart, tasks[first::jobs], factory, sentences): first for first in range(jobs)}
        for share in as_completed(shares):
            heard[shares[share] :: jobs] = share.result()
            show(sum(result is not None for result in heard))
    return [result for result in heard if result is not None]


def _listen_apart(tasks: Sequence[Task], factory: RecogniserFactory, sentences: Sequence[Sequence[str]]) -> list[Heard]:
    """Run `_listen_to` in a new program. A fork would inherit locks of the networks' threads, and `multiprocessing`
    imports modules from the current folder."""
    # Send sys.path first, because unpickling the other data may import modules from these folders.
    question = pickle.dumps(sys.path) + pickle.dumps((tasks, factory, sentences))
    done = subprocess.run(python_command(__name__), input=question, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise InvalidRequest("recogniser: one of its processes has failed; use fewer processes with --jobs")
    answer: list[Heard] | Exception = pickle.loads(done.stdout)
    if isinstance(answer, Exception):
        raise answer
    return answer


def main() -> None:
    # Ctrl-C reaches all processes of the terminal. This process ends silently; the main process reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # a recogniser's prints go to stderr, because stdout carries the results
        sys.path[:] = pickle.load(sys.stdin.buffer)
        answer: list[Heard] | Exception
        try:
            answer = _listen_to(*pickle.load(sys.stdin.buffer))
        except Exception as error:
            answer = error
        pickle.dump(answer, answers)


def _listen_to(
    tasks: Sequence[Task],
    factory: RecogniserFactory,
    sentences: Sequence[Sequence[str]],
    show: Callable[[int], None] = lambda _: None,
) -> list[Heard]:
    recogniser, heard = factory(), []
    closed = recogniser.closed(sentences) if hasattr(recogniser, "closed") else None
    for task in tasks:
        heard.append(_hear(task, recogniser, closed))
        show(len(heard))
    return heard


def _hear(task: Task, recogniser: Recogniser, closed: Recogniser | None) -> Heard:
    samples = as_floats(task.wave)
    free = _transcribe(recogniser, samples)
    limited = None if closed is None else _transcribe(closed, samples)
    if not (hasattr(recogniser, "phones") and hasattr(recogniser, "pronunciations")):
        return Heard(free, limited, None)
    phones = recogniser.phones(samples)
    ways = {word: recogniser.pronunciations(word) for word in task.said}
    errors, total = phone_errors([ways[word] for word in task.said if ways[word]], phones)
    return Heard(free, limited, " ".join(phones), errors, total, frozenset(word for word in ways if not ways[word]))


def _transcribe(recogniser: Recogniser, samples: Samples) -> str:
    kind = type(recogniser).__name__
    text = _guarded(kind, partial(recogniser.transcribe, samples))
    if not isinstance(text, str):
        raise InvalidRequest(f"recogniser: {kind}.transcribe gave a {type(text).__name__}; it must give a text")
    return text


DEFAULT_WHISPER = "base"
BEAMS = 5


class Whisper:
    """Recognises words with faster-whisper, without `closed` and `phones`; it may write numbers in digits."""

    def __init__(self, model: str = DEFAULT_WHISPER, language: str | None = None) -> None:
        """model: a name that faster-whisper downloads, or a folder; language: if None, detected for each utterance.

        MissingDependency: the package is not installed. InvalidRequest: the model cannot be loaded.
        """
        try:
            from faster_whisper import WhisperModel
        except ImportError:
            raise MissingDependency(
                "recogniser: faster-whisper is not installed; pip install faster-whisper, or use pocketsphinx"
            ) from None
        try:
            self._model: Any = WhisperModel(model, device="auto", compute_type="int8")
        except Exception as error:  # the package's errors have no common base class
            raise InvalidRequest(f"whisper: {model!r} cannot be loaded ({error}); name a model or a folder") from error
        self._language = language

    def transcribe(self, samples: Samples) -> str:
        """Return the recognised words. samples: [n] float32 in ±1 at 16 kHz."""
        segments, _ = self._model.transcribe(
            samples, language=self._language, beam_size=BEAMS, condition_on_previous_text=False, without_timestamps=True
        )
        return " ".join(segment.text.strip() for segment in segments)
