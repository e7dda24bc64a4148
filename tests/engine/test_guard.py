"""Speech that leaves its text is noticed, and drawn again from a place before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engine.lm_stage.lm_talk import request
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.guard import (
    LOOP_TIMES,
    LOST_TOKENS,
    STAND_TOKENS,
    FoundFault,
    GuardedText,
    another_seed,
    cut_for,
    end_for,
    find_fault,
    loop_period,
    run_again,
)
from vivavoce.engine.lm_stage import DecodeRun
from vivavoce.engine.request import EngineRequest, Fault
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.text_cursor import TextCursor
from vivavoce.models.lm.interleave import Row, RowKind
from vivavoce.models.lm.text_attention import TextHeads

IDS, EACH = 20, 4
TEXT = GuardedText(IDS, tuple(range(0, IDS, 2)), EACH)
CLEAN = [at for at in range(IDS) for _ in range(EACH)]


def look(path: list[int], ended: bool = False, tokens=None, text: GuardedText = TEXT) -> Fault | None:
    cursor, rows = TextCursor(), np.full((len(path), IDS), 0.01, np.float32)
    rows[range(len(path)), path] = 0.8
    cursor.add(len(path), rows)
    tokens = np.random.default_rng(0).integers(0, 6561, len(path)).tolist() if tokens is None else tokens
    found = find_fault(cursor, tokens, text, ended)
    return None if found is None else found.fault


def test_clean_speech_has_no_fault():
    for count in range(8, len(CLEAN), 8):
        assert look(CLEAN[:count]) is None
    assert look(CLEAN, ended=True) is None


@pytest.mark.parametrize(
    ("path", "ended", "fault"),
    [
        (CLEAN[:40], True, Fault.EARLY_END),
        (CLEAN[:24] + CLEAN[48:], False, Fault.SKIPS),
        (CLEAN[:40] + CLEAN[20:40], False, Fault.REPEATS),
        (CLEAN[:40] + [9] * 60, False, Fault.STANDS),
    ],
)
def test_faults_are_noticed(path, ended, fault):
    assert look(path, ended) is fault


def test_loops_are_noticed_where_the_voice_stands():
    loop = [7, 8, 9, 10, 11, 12] * LOOP_TIMES
    assert loop_period(loop) == 6
    assert loop_period(list(range(100))) == 0
    tokens = [*range(100, 140), *loop]
    assert look(CLEAN[:40] + [9] * len(loop), tokens=tokens) is Fault.LOOPS
    assert look(CLEAN[:64], tokens=tokens) is None  # equal tokens alone are no fault


def test_two_ids_left_out_are_noticed_once_the_speech_has_ended():
    for first in (3, 9, 17):  # the second half of a word and the first of the next
        path = [at for at in CLEAN if not first <= at < first + 2]
        assert look(path) is None
        assert look(path, ended=True) is Fault.SKIPS
    path = [at for at in CLEAN if at not in (18, 19)]
    assert look(path, ended=True) is None, "the last word may be punctuation"


def test_a_part_of_two_words_that_is_left_out_is_noticed():
    words = GuardedText(IDS, (0, 4, 8, 12, 16), EACH)
    left_out = [at for at in CLEAN if at not in (6, 7, 8, 9)]
    assert look(left_out, text=words) is Fault.SKIPS
    assert look(left_out, text=replace(words, words=(0, 4, 12, 16))) is None  # they are marks within a word
    assert look([at for at in CLEAN if at not in (7, 8)], text=words) is None


def leaking(share: float, since: int, tokens: int = 20, path=CLEAN, moves: bool = True) -> TextCursor:
    """Speech that gives so much of its attention to the five text ids of the prompt, one after the other."""
    cursor = TextCursor()
    path = [*path[:since], *[path[since]] * tokens, *path[since:]]
    rows = np.full((len(path), 5 + IDS), 0.002, np.float32)
    rows[range(len(path)), [5 + at for at in path]] = 0.8
    rows[since : since + tokens, 5:] *= 1 - share
    looked_at = [(at - since) // 4 % 5 if moves else 2 for at in range(since, since + tokens)]
    rows[range(since, since + tokens), looked_at] = share
    cursor.add(len(path), rows, -5)
    return cursor


@pytest.mark.parametrize("since", [0, 32])
def test_a_prompt_that_is_spoken_is_noticed(since):
    def fault(cursor: TextCursor, text: GuardedText = TEXT) -> FoundFault | None:
        tokens = np.random.default_rng(0).integers(0, 6561, len(cursor)).tolist()
        return find_fault(cursor, tokens, text, False)

    found = fault(leaking(0.7, since))
    assert found.fault is Fault.LEAK
    assert abs(found.at - since) <= 16
    assert fault(leaking(0.05, since)) is None
    assert fault(leaking(0.7, since, tokens=6)) is None
    assert fault(leaking(0.7, since, moves=False)) is None  # attention rests on one id, as in a silence
    short = GuardedText(3, (0,), EACH)
    assert fault(leaking(0.95, since), short).fault is Fault.LEAK
    assert fault(leaking(0.95, since, tokens=3), short) is None
    assert fault(leaking(0.7, since), short) is None  # the end of "Yes." looks like this


@pytest.mark.parametrize(("spoken", "most"), [(len(CLEAN) // 2, LOST_TOKENS), (len(CLEAN), STAND_TOKENS)])
@pytest.mark.parametrize("leaks", [True, False])
def test_speech_that_never_comes_back_to_its_text_has_an_end(spoken, most, leaks):
    def ends(more: int) -> int | None:
        cursor, count = TextCursor(), spoken + more
        rows = np.full((count, 5 + IDS), 0.01, np.float32)
        rows[range(spoken), [5 + at for at in CLEAN[:spoken]]] = 0.8
        rows[range(spoken, count), 2 if leaks else 5 + CLEAN[spoken - 1]] = 0.8
        cursor.add(count, rows, -5)
        return end_for(cursor, TEXT)

    assert ends(most - 2 * EACH) is None
    assert spoken - EACH <= ends(most + EACH) <= spoken + 2 * EACH
    assert [end_for(one, TEXT) for one in (leaking(0.05, 0), leaking(0.7, 32))] == [None, None]


def test_attention_to_the_prompt_alone_is_no_leak():
    cursor = TextCursor()
    rows = np.full((len(CLEAN), 5 + IDS), 0.002, np.float32)
    rows[range(len(CLEAN)), [5 + at for at in CLEAN]] = 0.4
    rows[:, :5] = 0.1
    cursor.add(len(CLEAN), rows, -5)
    tokens = np.random.default_rng(0).integers(0, 6561, len(CLEAN)).tolist()
    assert find_fault(cursor, tokens, TEXT, True) is None  # the voice goes on through its text


def test_a_pause_alone_is_no_fault():
    assert look(CLEAN[:40] + [10] * 20 + CLEAN[44:60]) is None


def test_attention_that_rests_behind_the_end_is_no_repeat():
    assert look([*CLEAN, *[0] * 16], ended=True) is None
    assert look([*CLEAN, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2], ended=True) is Fault.REPEATS


def test_short_texts_are_judged_by_their_length_only():
    short = GuardedText(3, (0,), EACH)
    assert look([0] * 40, text=short) is None
    assert look([0], ended=True, text=short) is Fault.EARLY_END
    assert look([0, 1, 2], ended=True, text=short) is None


def test_it_goes_back_to_the_text_before_and_never_behind_what_is_heard():
    cursor, rows = TextCursor(), np.full((40, IDS), 0.01, np.float32)
    rows[range(40), CLEAN[:40]] = 0.8
    cursor.add(40, rows)
    finding = FoundFault(Fault.REPEATS, 30)
    kept = cut_for(finding, cursor, 2.5, 0)
    assert 20 <= kept < 30
    assert cut_for(finding, cursor, 2.5, 33) == 33


def test_the_run_goes_on_behind_what_is_kept():
    run = DecodeRun((Row(RowKind.TEXT, 1),), (6561,), 100, 6561, 10, (6561,))
    again = run_again(run, [5, 6, 7], IDS, Fault.EARLY_END)
    assert again.rows[1:] == tuple(Row(RowKind.SPEECH, one) for one in (5, 6, 7))
    assert (again.forced_at, again.min_tokens) == (97, 7)
    assert 3 != another_seed(3, 1) != another_seed(3, 2)


@pytest.mark.parametrize("watched", [True, False])
def test_the_engine_draws_again_from_there(models, monkeypatch, watched):
    """One fault is found after 16 speech tokens: the first 8 stay, the others are drawn with another seed."""
    asked = replace(request(1, small=True, max_ratio=20.0, min_ratio=20.0), watched=watched, guarded=(0,))
    looks = []

    def find(cursor, tokens, text, ended, silent):
        looks.append(len(tokens))
        return FoundFault(Fault.SKIPS, 12) if len(tokens) >= 16 and len(looks) == 2 else None

    monkeypatch.setattr("vivavoce.engine.lm_runner.cut_for", lambda finding, cursor, lag, least: max(least, 8))
    with Engine(models, EngineSettings(slots=2)) as engine:
        engine.watch(TextHeads(((0, 1), (1, 0)), 2.5))
        plain = engine.submit(EngineRequest((replace(asked, guarded=None),))).result()
        monkeypatch.setattr("vivavoce.engine.lm_runner.find_fault", find)
        guarded = engine.submit(EngineRequest((asked,))).result()
    if not watched:
        assert not looks
        assert guarded.tokens == plain.tokens
        return
    assert guarded.faults == (("skips", True),)
    assert plain.faults == ()
    assert guarded.tokens[0][:8] == plain.tokens[0][:8]
    assert guarded.tokens[0] != plain.tokens[0]
    assert len(guarded.samples) == 960 * len(guarded.tokens[0])


@pytest.mark.parametrize("policy", [None, ChunkPolicy.low_latency()])
def test_after_the_last_try_speech_that_is_lost_is_ended(models, monkeypatch, policy):
    asked = replace(request(1, small=True, max_ratio=40.0, min_ratio=40.0), watched=True, guarded=(0,))
    monkeypatch.setattr("vivavoce.engine.lm_runner.find_fault", lambda *_: FoundFault(Fault.LEAK, 10))
    monkeypatch.setattr("vivavoce.engine.lm_runner.cut_for", lambda *_: 8)
    monkeypatch.setattr("vivavoce.engine.lm_runner.end_for", lambda cursor, text: 20 if len(cursor) >= 40 else None)
    with Engine(models, EngineSettings(slots=2)) as engine:
        engine.watch(TextHeads(((0, 1), (1, 0)), 2.5))
        plain = engine.submit(EngineRequest((replace(asked, guarded=None),))).result()
        ended = engine.submit(EngineRequest((asked,), policy)).result()
    assert len(plain.tokens[0]) > 48
    assert ended.faults == (("leak", False),)
    assert ended.cut == (False,)
    assert 20 <= len(ended.tokens[0]) < 48
