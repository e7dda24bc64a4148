"""Brackets and SSML in a text that arrives: neither is torn, and SSML is read when all of it is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from vivavoce.service.text.arriving import Sentence, located_sentences, whole_words
from vivavoce.service.text.checks import check_length
from vivavoce.service.text.natural.control import HOW
from vivavoce.service.text.natural.grammar import compiled
from vivavoce.service.text.natural.markup import Settings
from vivavoce.service.text.natural.reader import read_run
from vivavoce.service.text.natural.ssml import find_runs, is_ssml
from vivavoce.service.text.reading import is_speakable
from vivavoce.service.text.recognition import recognise

_OPEN = compiled(rf"\s*\[(?:pause [^\[\]\n]{{0,20}}|(?:{HOW}):[^\[\]\n]{{0,101}}|\p{{Ll}}{{0,8}})\Z")
_BEGINS, _LONG_S = "<speak", 0.5
_ENDED = compiled(r"[\p{P}]\s*\Z|\A\s*\Z")


def control_sentences(pieces: Iterable[str], marks: frozenset[str]) -> Iterator[Sentence]:
    """As `located_sentences`, and none ends inside of a bracket; pauses before the first words stand in one with these.

    SSML is one sentence. marks: of the model. InvalidText: see `find_runs`.
    """
    ssml, pieces = _gather(pieces)
    if ssml:
        yield Sentence(ssml, 0, recognise("".join(run.plain for run in find_runs(ssml, marks))))
    held, begun = None, False
    for one in located_sentences(pieces):
        if held:
            one = Sentence(held.text + " " * (one.start - held.end) + one.text, held.start, one.language)
        begun = begun or any(run.said or is_speakable(run.plain) for run in find_runs(one.text, marks))
        held = None if begun and not _OPEN.search(one.text) else one
        if held is None:
            yield one
    if held:
        yield held


def control_words(pieces: Iterable[str], language: str | None, marks: frozenset[str]) -> Iterator[tuple[str, int]]:
    """As `whole_words`, with words for brackets and SSML; a pause becomes a comma, a long one a full stop."""
    ssml, pieces = _gather(pieces)
    if ssml:
        yield _in_words(ssml, "", language, marks), len(ssml)
    held, come, last = "", 0, ""
    for words, come in whole_words(pieces):
        held += words
        opened = _OPEN.search(held)
        ready = held[: opened.start()] if opened else held
        if ready:
            held, said = held[len(ready) :], _in_words(ready, last, language, marks)
            last = said or last
            yield said, come
    if held:
        yield _in_words(held, last, language, marks), come


def _in_words(text: str, before: str, language: str | None, marks: frozenset[str]) -> str:
    """A text with words for what has a way of its own; SSML is read, other text stays as it is written."""
    said, reads, settings = before, is_ssml(text), Settings(marks=marks)
    for run in find_runs(text, marks):
        if run.pause_s:
            said = max(said.rstrip(), before, key=len)
            said += "" if _ENDED.search(said) else "," if run.pause_s < _LONG_S else "."
        elif reads or not run.said.keys().isdisjoint(run.plain):
            said += read_run(run.plain, run.language or language, settings, run.said, (bool(said), True)).spoken
        else:
            said += run.plain
    return said[len(before) :]


def _gather(pieces: Iterable[str]) -> tuple[str, Iterator[str]]:
    """All of a text that begins as SSML, once its last piece has come, and no pieces; of others "" and their pieces.

    InvalidText: it is too long, or no text.
    """
    begun, pieces = "", iter(pieces)
    for piece in pieces:
        check_length(piece)
        begun += piece
        if is_ssml(begun):
            for more in pieces:
                check_length(more)
                check_length(begun := begun + more)
            return begun, iter(())
        if not _BEGINS.startswith(begun.lstrip()[: len(_BEGINS)]):
            break
    return "", chain((begun,) if begun else (), pieces)
