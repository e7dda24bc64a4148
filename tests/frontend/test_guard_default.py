"""A model's own default of the guard, which a request may overrule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import vivavoce
from vivavoce.checkpoint.folder import read_card
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.front_end import FrontEnd
from vivavoce.frontend.model_choice import model_folder
from vivavoce.frontend.speech import SpeakOptions


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("asked", [None, True, False])
def test_a_request_that_says_nothing_has_the_models_default(guarded: bool, asked: bool | None) -> None:
    front_end: FrontEnd = Mock(spec=FrontEnd, card=SimpleNamespace(guarded=guarded))
    options = FrontEnd.resolved(front_end, SpeakOptions(guard=asked))
    wanted = guarded if asked is None else asked
    assert options.guard is wanted
    assert options.follows is wanted


def test_of_the_models_in_the_package_mini_alone_has_it() -> None:
    assert read_card(model_folder("mini")).guarded
    assert not read_card(model_folder("babble")).guarded


@pytest.mark.parametrize("wrong", [0, "yes"])
def test_other_values_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="guard"):
        SpeakOptions(guard=wrong)  # type: ignore[arg-type]


def test_speech_follows_the_models_default(babble: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for module in ("vivavoce.api", "vivavoce.frontend.session"):
        monkeypatch.setattr(f"{module}.know_heads", lambda *_: bool(asked.append(True)))
    with vivavoce.load(babble) as tts:
        card = replace(tts.front_end.card, guarded=True)
        monkeypatch.setattr(tts, "_front_end", replace(tts.front_end, card=card))
        for guard, times in ((None, 1), (False, 0), (True, 1)):
            asked.clear()
            tts.speak("Hi.", guard=guard)
            assert len(asked) == times
            list(tts.stream("Hi.", guard=guard))
            assert len(asked) == 2 * times
