"""Texts against what a recogniser hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.evaluate.cases import Case
from vivavoce.evaluate.controls import Control, spoil_texts
from vivavoce.evaluate.edits import align
from vivavoce.evaluate.instruments import Instruments
from vivavoce.evaluate.listening import Heard, Task, listen, unknown_words
from vivavoce.evaluate.utterance import Recognition, Utterance
from vivavoce.evaluate.wording import Spell, is_unspaced, split_like

_EXCERPT = 40


def ready(cases: Sequence[Case], instruments: Instruments, control: Control | None = None) -> Instruments:
    """Refuse, before anything is spoken, what could not be scored afterwards; the recogniser is tried out.

    The same instruments come back; a recogniser for this process is made now and not again.

    Raises:
        InvalidText: a text cannot be spelled.
        InvalidRequest: the recogniser cannot be made, or knows not one word of a text; no wrong text for a control.
        MissingDependency: the built-in recogniser is not installed.
    """
    spoil_texts([case.text for case in cases], control)
    texts = [_spell_case(case, instruments.spell) for case in cases]
    if instruments.recogniser is None:
        return instruments
    recogniser = instruments.recogniser()
    for case, text in zip(cases, texts, strict=True):
        said = split_like(text)(text)
        if len(unknown_words(recogniser, said)) == len(said):
            raise InvalidRequest(
                f"recogniser: it knows not one word of sentence {case.id}, {case.text[:_EXCERPT]!r}; name another "
                "recogniser, or leave the sentence out"
            )
    return instruments if instruments.jobs > 1 else replace(instruments, recogniser=lambda: recogniser)


def _spell_case(case: Case, spell: Spell) -> str:
    try:
        return spell(case.text)
    except InvalidText as error:
        raise InvalidText(f"sentence {case.id}: {error}") from None


def recognise(
    utterances: Sequence[Utterance],
    waves: Sequence[NDArray[np.int16]],
    instruments: Instruments,
    control: Control | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> Sequence[Recognition | None]:
    """What the recogniser makes of each utterance's audio, which is as `prepare` makes it; without one, None.

    Errors as in `listen`.
    """
    if instruments.recogniser is None:
        return [None] * len(utterances)
    said = spoil_texts([utterance.text for utterance in utterances], control)
    texts = [spelled(text, instruments.spell) for text in said]
    tasks = [Task(wave, tuple(split_like(text)(text))) for text, wave in zip(texts, waves, strict=True)]
    show(f"listening to {len(tasks)} utterances …")
    heard = listen(
        tasks, instruments.recogniser, instruments.jobs, lambda done: show(f"listening … {done} of {len(tasks)}")
    )
    return [
        _score(text, task.said, result, instruments.spell)
        for text, task, result in zip(texts, tasks, heard, strict=True)
    ]


def spelled(text: str, spell: Spell) -> str:
    """The text as it is spoken; as it is where the model cannot read it, as may happen with a transcript."""
    try:
        return spell(text) if text.strip() else ""
    except InvalidText:
        return text


def _score(text: str, said: Sequence[str], heard: Heard, spell: Spell) -> Recognition:
    split = split_like(text)
    known = [unit for unit in said if unit not in heard.unknown]
    return Recognition(
        unit="character" if is_unspaced(text) else "word",
        said=" ".join(said),
        unknown=tuple(unit for unit in said if unit in heard.unknown),
        heard=heard.free,
        heard_closed=heard.closed,
        heard_phones=heard.phones,
        free=align(known, split(spelled(heard.free, spell))),
        closed=None if heard.closed is None else align(known, split(spelled(heard.closed, spell))),
        phone_errors=heard.phone_errors,
        num_phones=heard.num_phones,
    )
