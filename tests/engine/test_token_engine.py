"""Speech tokens without audio: the same as the whole engine's, alone and in company; leaving, faults, the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from tests.engine.engine_helpers import MUTE, PATIENCE_S, VOICE, inject, offline, running
from vivavoce.engine.request import SamplingParams, SynthesisRequest
from vivavoce.engine.token_engine import TokenEngine, TokenSettings
from vivavoce.engine.token_request import TokenRequest, speech_prompt
from vivavoce.errors import (
    EngineStopped,
    InvalidRequest,
    OutOfMemory,
    Overloaded,
    RequestCancelled,
    StageFailed,
)
from vivavoce.models.build import LanguageModel, build_language_model
from vivavoce.models.lm.interleave import Row, RowKind

EOS, FILL = 6561, 6563
SMALL = TokenSettings(slots=4)


@pytest.fixture(scope="module")
def lm(babble) -> LanguageModel:
    return build_language_model(babble, torch.device("cpu"))


@contextmanager
def speaking(lm, settings=SMALL, **options):
    engine = TokenEngine(lm, settings, **options)
    try:
        yield engine
    finally:
        engine.close(drain=False)


@pytest.fixture
def engine(lm):
    with speaking(lm) as engine:
        yield engine


def ask(lm, size=3, seed=0, max_tokens=20, voice=VOICE, **settings) -> TokenRequest:
    text = voice.lm_prompt_text + tuple(range(65, 65 + size))
    rows = speech_prompt(lm.config.lm.vocabulary, text, voice.lm_prompt_tokens)
    return TokenRequest(rows, max_tokens, seed=seed, **settings)


def endless(lm, **settings) -> TokenRequest:
    return ask(lm, max_tokens=4_000, ends=(), **settings)


def at_rest(engine: TokenEngine) -> None:
    """All messages are taken and nobody holds a slot."""
    stage, loop = engine._loop._stage, engine._loop
    for _ in range(1_000):
        engine.submit(TokenRequest((Row(RowKind.TEXT, 65),), 1)).result()
        if len(loop._jobs) == 0 and stage.free_slots == stage.slots and not stage.in_flight:
            break
    assert (loop._jobs, list(loop._waiting), loop._running) == ({}, [], {})
    assert stage.free_slots == stage.slots
    assert engine._room._inside == 0


def test_tokens_are_those_of_the_engine(models, lm):
    """The whole engine's lengths follow from the text: at least twice, at most four times as many tokens as ids."""
    asked = [(4, 11, VOICE), (9, 12, MUTE), (6, 13, VOICE)]
    with running(models) as whole, speaking(lm) as engine:
        for size, seed, voice in asked:
            sampling = SamplingParams(max_ratio=4.0, top_p=0.9, top_k=40)
            text = tuple(range(65, 65 + size))
            spoken = whole.submit(offline(SynthesisRequest(voice, text=text, sampling=sampling, seed=seed))).result()
            request = ask(lm, size, seed, 4 * size, voice, min_tokens=2 * size, top_p=0.9, top_k=40)
            assert tuple(engine.submit(request).result()) == spoken.tokens[0]


def test_company_changes_nothing(lm):
    requests = [ask(lm, 2 + seed % 5, seed, 10 + 3 * seed, top_k=5 + seed) for seed in range(12)]
    with speaking(lm) as engine:
        alone = [engine.submit(request).result() for request in requests]
        together = [handle.result() for handle in [engine.submit(request) for request in requests]]
        at_rest(engine)
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


def test_the_seed_decides(engine, lm):
    first, again, other = (engine.submit(ask(lm, seed=seed)).result() for seed in (1, 1, 2))
    assert first == again != other


def test_tokens_come_in_order_as_they_are_drawn(engine, lm):
    pieces = list(engine.submit(ask(lm, max_tokens=30, ends=())))
    assert all(pieces)
    assert len(pieces) > 1
    assert [one for piece in pieces for one in piece] == engine.submit(ask(lm, max_tokens=30, ends=())).result()


class Says:
    """Speech until so many ids were drawn, then a control id as soon as it may be."""

    def __init__(self, after: int, control: int) -> None:
        self.after, self.control = after, control

    def __call__(self, scores, state):
        may = (state.counts >= self.after) & (scores[:, self.control] > float("-inf"))
        return torch.where(may, self.control, state.counts)


@pytest.mark.parametrize(
    ("control", "wanted", "settings"),
    [
        (EOS, 3, {}),
        (FILL, 3, {}),
        (FILL, 9, {"ends": (EOS,)}),
        (EOS, 3, {"ends": (EOS,)}),
        (EOS, 9, {"ends": ()}),
        (EOS, 7, {"min_tokens": 7}),
        (EOS, 9, {"min_tokens": 50}),
        (EOS, 2, {"max_tokens": 2}),
    ],
)
def test_ends_and_lengths(lm, control, wanted, settings):
    with speaking(lm, chooser=Says(3, control)) as engine:
        assert engine.submit(ask(lm, **{"max_tokens": 9, **settings})).result() == list(range(wanted))


@pytest.mark.parametrize(("least", "wanted"), [(0, []), (1, [0])])
def test_nothing_at_all_may_be_said_only_if_asked_for(lm, least, wanted):
    with speaking(lm, chooser=Says(0, EOS)) as engine:
        assert engine.submit(ask(lm, min_tokens=least)).result() == wanted


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_tokens": 0}, "max_tokens: 0"),
        ({"min_tokens": -1}, "min_tokens: -1"),
        ({"seed": 2**63}, "seed"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"rows": ()}, "prompt: it has no rows"),
    ],
)
def test_what_no_engine_takes(settings, words):
    with pytest.raises(InvalidRequest, match=words):
        TokenRequest(**{"rows": (Row(RowKind.TEXT, 1),), "max_tokens": 1, **settings})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row(RowKind.TEXT, 100_000), "text id 100000"),
        (Row(RowKind.TEXT, -1), "text id -1"),
        (Row(RowKind.SPEECH, EOS), "speech id 6561 is outside of 0 … 6560"),
        (Row(RowKind.CONTROL, 2), "control id 2"),
    ],
)
def test_ids_of_another_model(engine, row, words):
    with pytest.raises(InvalidRequest, match=words):
        engine.submit(TokenRequest((row,), 1))


def test_what_this_engine_does_not_take(engine, lm):
    with pytest.raises(InvalidRequest, match="ends: id 5 "):
        engine.submit(ask(lm, ends=(5,)))
    with pytest.raises(InvalidRequest, match=r"a slot has 5120; ask for \d+ or fewer"):
        engine.submit(ask(lm, max_tokens=5_120))
    with pytest.raises(InvalidRequest, match="use a shorter text"):
        engine.submit(TokenRequest((Row(RowKind.TEXT, 65),) * 5_119, 1))
    at_rest(engine)


@pytest.mark.parametrize("settings", [{"slots": 0}, {"memory_share": 0.0}, {"max_waiting": -1}])
def test_settings_out_of_their_limits(settings):
    (name,) = settings
    with pytest.raises(InvalidRequest, match=name):
        TokenSettings(**settings)


def test_who_finds_no_room_is_told_at_once(lm):
    with speaking(lm, TokenSettings(slots=1, max_waiting=1)) as engine:
        decoded, waits = engine.submit(endless(lm)), engine.submit(ask(lm))
        with pytest.raises(Overloaded, match="2 are decoded or wait"):
            engine.submit(ask(lm))
        next(iter(decoded))  # the iteration is left at once: cancelled
        assert len(waits.result()) > 0
        at_rest(engine)


def test_a_newcomer_does_not_wait_for_the_end_of_others(engine, lm):
    long = [engine.submit(endless(lm, seed=seed)) for seed in range(3)]
    assert len(engine.submit(ask(lm)).result()) > 0
    assert not any(handle.done for handle in long)


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_dropped_handle_frees_its_slot(engine, lm, pieces):
    handle = engine.submit(endless(lm))
    listener = iter(handle)
    for _ in range(pieces):
        next(listener)
    del listener, handle
    gc.collect()
    at_rest(engine)


def test_a_cancel_ends_a_listener_in_another_thread(engine, lm):
    handle = engine.submit(endless(lm))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(handle.result)
        handle.cancel()
        with pytest.raises(RequestCancelled):
            future.result(PATIENCE_S)
    handle.cancel()
    at_rest(engine)


def test_one_that_waits_can_be_cancelled(lm):
    with speaking(lm, TokenSettings(slots=1)) as engine:
        decoded, waits, last = engine.submit(endless(lm)), engine.submit(endless(lm)), engine.submit(ask(lm))
        waits.cancel()
        decoded.cancel()
        assert len(last.result()) > 0
        with pytest.raises(RequestCancelled):
            waits.result()
        at_rest(engine)


def test_many_listeners_in_one_event_loop(engine, lm):
    async def leave():
        tokens = engine.submit(endless(lm)).__aiter__()
        await tokens.__anext__()
        await tokens.aclose()

    async def all_of_them():
        asked = [engine.submit(ask(lm, seed=seed)).result_async() for seed in range(6)]
        return await asyncio.wait_for(asyncio.gather(*asked, leave()), PATIENCE_S)

    *heard, _ = asyncio.run(all_of_them())
    assert heard == [engine.submit(ask(lm, seed=seed)).result() for seed in range(6)]
    at_rest(engine)


def test_many_threads_at_once(engine, lm):
    with ThreadPoolExecutor(8) as pool:
        heard = list(pool.map(lambda seed: engine.submit(ask(lm, seed=seed)).result(), range(24)))
    assert heard == [engine.submit(ask(lm, seed=seed)).result() for seed in range(24)]


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="vivavoce")


BLAMED = 4_321
"""A text id's stand-in that a fault looks for: the seed of the request that is to fail."""


def blamed(number, slots_held, most):
    return any(slot.seed == BLAMED for slot in slots_held)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [(RuntimeError("no"), StageFailed), (torch.cuda.OutOfMemoryError("full"), OutOfMemory)],
)
def test_a_prompt_that_cannot_be_read_hurts_itself_alone(lm, monkeypatch, quiet, error, wanted):
    with speaking(lm) as engine:
        alone = [engine.submit(ask(lm, seed=seed)).result() for seed in range(3)]
        inject(monkeypatch, engine._loop._stage._steps, "prefill", error, blamed)
        # They come while all slots are taken, and are read in one prefill.
        taken = [engine.submit(endless(lm)) for _ in range(4)]
        handles = [engine.submit(ask(lm, seed=seed)) for seed in (0, BLAMED, 1, 2)]
        for handle in taken:
            handle.cancel()
        with pytest.raises(wanted):
            handles[1].result()
        assert [handles[place].result() for place in (0, 2, 3)] == alone
        at_rest(engine)


def test_a_step_that_fails_ends_those_in_it_and_nobody_after(lm, monkeypatch, quiet):
    with speaking(lm) as engine:
        alone = engine.submit(ask(lm)).result()
        inject(monkeypatch, engine._loop._stage._steps, "decode", torch.cuda.OutOfMemoryError("full"))
        with pytest.raises(OutOfMemory):
            engine.submit(endless(lm)).result()
        assert engine.submit(ask(lm)).result() == alone
        at_rest(engine)


def test_tokens_that_came_before_a_fault_are_heard(lm, monkeypatch, quiet):
    with speaking(lm, chooser=Says(10**6, EOS)) as engine:
        inject(monkeypatch, engine._loop._stage._steps, "decode", RuntimeError("no"), lambda number, *_: number == 3)
        handle, heard = engine.submit(endless(lm)), []
        with pytest.raises(StageFailed):
            heard.extend(token for tokens in handle for token in tokens)
    assert heard == [0, 1, 2]


def test_a_broken_loop_ends_everybody(lm, monkeypatch, quiet):
    with speaking(lm) as engine:
        handle = engine.submit(endless(lm))
        monkeypatch.setattr(engine._loop, "_begin", lambda: 1 / 0)
        with pytest.raises(EngineStopped):
            handle.result()
        engine._runner.thread.join(PATIENCE_S)
        assert not engine.healthy
        with pytest.raises(EngineStopped):
            engine.submit(ask(lm))
        assert engine._room._inside == 0


def test_a_bad_prompt_leaves_no_trace(engine, lm):
    with pytest.raises(InvalidRequest):
        engine.submit(TokenRequest((Row(RowKind.TEXT, 10**6),), 1))
    assert engine._room._inside == 0


def test_draining_finishes_what_was_accepted(lm):
    engine = TokenEngine(lm, TokenSettings(slots=2))
    handles = [engine.submit(ask(lm, seed=seed)) for seed in range(5)]
    engine.close()
    assert all(handle.done for handle in handles)
    assert all(handle.result() for handle in handles)


def test_draining_stops_when_its_time_is_over(lm):
    engine = TokenEngine(lm, SMALL)
    unfinished = engine.submit(endless(lm))
    engine.close(timeout_s=0)
    with pytest.raises(EngineStopped):
        unfinished.result()


def test_a_stopped_engine_takes_nothing(lm):
    engine = TokenEngine(lm, SMALL)
    engine.close()
    engine.close(drain=False)
    with pytest.raises(EngineStopped):
        engine.submit(ask(lm))
    with pytest.raises(EngineStopped):
        engine.warm_up()


def test_a_request_that_meets_the_end_is_refused_not_lost(lm, monkeypatch):
    """Submitted while the engine was healthy, posted when nobody reads any more."""
    engine = TokenEngine(lm, SMALL)
    enter = engine._room.enter

    def close_and_enter():
        engine.close(drain=False)
        enter()

    monkeypatch.setattr(engine._room, "enter", close_and_enter)
    with pytest.raises(EngineStopped):
        engine.submit(ask(lm)).result()
    assert engine._room._inside == 0


def test_a_context_drains(lm):
    with TokenEngine(lm, SMALL) as engine:
        handle = engine.submit(ask(lm))
    assert handle.result()


def test_an_engine_nobody_uses_stops_its_thread(lm):
    before = set(threading.enumerate())
    engine = TokenEngine(lm, SMALL)
    engine.submit(ask(lm)).result()
    (thread,) = set(threading.enumerate()) - before
    seen = weakref.ref(engine)
    del engine
    gc.collect()
    assert seen() is None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_handle_keeps_its_engine(lm):
    handle = TokenEngine(lm, SMALL).submit(ask(lm))
    gc.collect()
    assert handle.result()


def test_warming_up(lm):
    with TokenEngine(lm, SMALL) as engine:
        with pytest.raises(InvalidRequest, match="streams: 0"):
            engine.warm_up(0)
        alone = engine.submit(ask(lm)).result()
        engine.warm_up(2)
        assert engine.submit(ask(lm)).result() == alone


def test_kernels_of_our_own_are_used_if_asked_for(lm):
    pytest.importorskip("triton")
    chosen = {kernels: TokenEngine(lm, TokenSettings(slots=1, kernels=kernels)) for kernels in (None, True)}
    used = {kernels: type(engine._loop._stage._steps).__name__ for kernels, engine in chosen.items()}
    assert used == {None: "PlainSteps", True: "RecordedSteps"}


def test_the_program_may_end_while_it_speaks(babble):
    script = f"""
import torch
from pathlib import Path
from vivavoce.engine.token_engine import TokenEngine
from vivavoce.engine.token_request import TokenRequest, speech_prompt
from vivavoce.models.build import build_language_model

torch.set_num_threads(1)
lm = build_language_model(Path({str(babble)!r}), torch.device("cpu"))
handle = TokenEngine(lm).submit(TokenRequest(speech_prompt(lm.config.lm.vocabulary, (65, 66)), 4000, ends=()))
next(iter(handle))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
