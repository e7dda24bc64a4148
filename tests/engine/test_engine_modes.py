"""What an engine does whose models are only a part: speech tokens without audio, audio of speech tokens that come."""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch

from tests.engine.engine_helpers import (
    LOW_LATENCY,
    MUTE,
    PATIENCE_S,
    VOICE,
    arriving,
    given,
    inject,
    offline,
    running,
    same,
    segment,
    stream,
    voice,
)
from tests.engine.lm_stage.lm_talk import EOS, FILL, Says
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.device import DeviceQueue, QueueEvent
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import (
    EngineRequest,
    InputMode,
    SamplingParams,
    SegmentRequest,
    SpeechTokens,
    TokenRequest,
    speech_prompt,
)
from vivavoce.engine.settings import EngineSettings, plan_memory
from vivavoce.errors import InvalidRequest, Overloaded, RequestCancelled, StageFailed
from vivavoce.models.build import LanguageModel, build_language_model
from vivavoce.models.lm.interleave import Row, RowKind
from vivavoce.models.lm.qwen2 import SpeechLM

SMALL = EngineSettings(slots=4)


@pytest.fixture(scope="module")
def lm(babble) -> LanguageModel:
    return build_language_model(babble, torch.device("cpu"))


@pytest.fixture(scope="module")
def tokens_only(lm):
    with running(lm, settings=SMALL) as engine:
        yield engine


def ask(lm, size=3, seed=0, max_tokens=20, voice=VOICE, sampling=SamplingParams(), **lengths) -> TokenRequest:
    text = voice.lm_prompt_text + tuple(range(65, 65 + size))
    rows = speech_prompt(lm.config.lm.vocabulary, text, voice.lm_prompt_tokens)
    return TokenRequest(rows, max_tokens, seed=seed, sampling=sampling, **lengths)


def endless(lm, **settings) -> TokenRequest:
    return ask(lm, max_tokens=4_000, ends=(), **settings)


def drawn(handle) -> list[int]:
    (tokens,) = handle.result().tokens
    return list(tokens)


def test_tokens_are_those_of_the_whole_engine(models, tokens_only, lm):
    """The whole engine's lengths follow from the text: at least twice, at most four times as many tokens as ids."""
    with running(models) as whole:
        for size, seed, who in [(4, 11, VOICE), (9, 12, MUTE), (6, 13, VOICE)]:
            sampling = SamplingParams(max_ratio=4.0, top_p=0.9, top_k=40)
            text = tuple(range(65, 65 + size))
            wanted = whole.submit(offline(SegmentRequest(who, text=text, sampling=sampling, seed=seed))).result()
            request = ask(lm, size, seed, 4 * size, who, sampling, min_tokens=2 * size)
            assert drawn(tokens_only.submit(request)) == list(wanted.tokens[0])
            assert drawn(whole.submit(request)) == list(wanted.tokens[0])


def test_company_changes_no_token_and_the_seed_decides(tokens_only, lm):
    draws = [SamplingParams(top_k=5 + seed) for seed in range(12)]
    requests = [ask(lm, 2 + seed % 5, seed, 10 + 3 * seed, sampling=one) for seed, one in enumerate(draws)]
    alone = [drawn(tokens_only.submit(request)) for request in requests]
    together = [drawn(handle) for handle in [tokens_only.submit(request) for request in requests]]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


def test_tokens_come_in_order_as_they_are_drawn(tokens_only, lm):
    handle = tokens_only.submit(ask(lm, max_tokens=30, ends=()))
    pieces = list(handle)
    assert all(pieces)
    assert len(pieces) > 1
    assert tuple(one for piece in pieces for one in piece) == handle.outcome.tokens[0]


SILENT = (1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323)


class Hushed:
    """After `seed` + 6 silent ids one that is not, by its count; it never ends."""

    def __call__(self, scores, state):
        silent = torch.tensor(SILENT)[state.counts % len(SILENT)]
        return torch.where((state.counts + 1) % (state.seeds + 7) == 0, 100 + state.counts, silent)


def audible(counts, seed) -> list[int]:
    """What is heard of what it says at these counts."""
    said = [100 + n if (n + 1) % (seed + 7) == 0 else SILENT[n % len(SILENT)] for n in counts]
    runs = (list(run) for _, run in groupby(said, lambda one: one in SILENT or one))
    return [one for run in runs for one in run[:5]]


def test_long_silences_of_the_third_generation_are_cut(models_v3):
    """Whatever is asked for, each by its own count; the language model's lengths count all that it said."""
    samples = 2 * models_v3.config.rates.samples_per_frame
    with running(models_v3, chooser=Hushed()) as engine:
        sampling, text = SamplingParams(max_ratio=4.0), tuple(range(65, 75))
        segments = [SegmentRequest(MUTE, text=text, sampling=sampling, seed=seed) for seed in range(4)]
        handles = [engine.submit(make(one)) for one in segments for make in (offline, stream)]
        tokens = [engine.submit(ask(models_v3, max_tokens=40, ends=(), seed=seed)) for seed in range(4)]
        for place, handle in enumerate(handles):
            spoken, wanted = handle.result(), audible(range(40), place // 2)
            assert list(spoken.tokens[0]) == wanted
            assert len(wanted) < 38
            assert (len(spoken.samples), spoken.cut) == (samples * len(wanted), (True,))
        for seed, handle in enumerate(tokens):
            assert (
                [one for piece in handle for one in piece] == list(handle.outcome.tokens[0]) == audible(range(40), seed)
            )
        handle = engine.submit(arriving(segments[1], InputMode.TOKENS))
        handle.text.close()
        # Two blocks of text, each followed by 15 ids and a fill, then the rest to four ids for each text id.
        assert list(handle.result().tokens[0]) == audible([*range(15), *range(16, 31), *range(32, 40)], 1)


def test_a_request_begins_with_as_little_silence_as_its_model_allows(models_v3):
    """Its later segments begin as the model speaks them, because that silence is the pause between two sentences."""
    silent = replace(models_v3.config.lm.vocabulary.silent, first=1)
    vocabulary = replace(models_v3.config.lm.vocabulary, silent=silent)
    config = replace(models_v3.config, lm=replace(models_v3.config.lm, vocabulary=vocabulary))
    with running(replace(models_v3, config=config), chooser=Hushed()) as engine:
        one = SegmentRequest(MUTE, text=tuple(range(65, 75)), sampling=SamplingParams(max_ratio=4.0), seed=2)
        usual = audible(range(40), 2)
        assert usual[:6] == [*SILENT[:5], 108]
        for make in (offline, stream):
            first, later = engine.submit(replace(make(one), segments=(one, one))).result().tokens
            assert (list(first), list(later)) == ([SILENT[0], *usual[5:]], usual)
        handle = engine.submit(ask(models_v3, max_tokens=40, ends=(), seed=2))
        assert [token for piece in handle for token in piece] == [SILENT[0], *usual[5:]]


@pytest.mark.parametrize("official", [False, True])
def test_a_text_that_arrives_behind_a_system_prompt_is_waited_for(models_v3, official):
    """Officially 15 tokens are said before the first words of it are there."""
    voice = replace(MUTE, lm_system_text=(70, 71))
    with running(models_v3, official=official) as engine:
        sequence = engine._intake.segment(SegmentRequest(voice, text=(65,)), InputMode.TOKENS, {})
        run = sequence.text.next_run()
        assert (run is not None) == official
        sequence.text.push((66,) * 4)
        ids = (70, 71) if official else (70, 71, 65, *(66,) * 4)
        assert [row.id for row in (run or sequence.text.next_run()).rows[1:]] == list(ids)


@pytest.mark.parametrize(
    ("after", "control", "wanted", "settings"),
    [
        (3, EOS, 3, {}),
        (3, FILL, 3, {}),
        (3, FILL, 9, {"ends": (EOS,)}),
        (3, EOS, 3, {"ends": (EOS,)}),
        (3, EOS, 9, {"ends": ()}),
        (3, EOS, 7, {"min_tokens": 7}),
        (3, EOS, 9, {"min_tokens": 50}),
        (3, EOS, 2, {"max_tokens": 2}),
        (0, EOS, 0, {"min_tokens": 0}),
        (0, EOS, 1, {"min_tokens": 1}),
    ],
)
def test_ends_and_lengths(lm, after, control, wanted, settings):
    with running(lm, settings=SMALL, chooser=Says(after, control)) as engine:
        assert drawn(engine.submit(ask(lm, **{"max_tokens": 9, **settings}))) == list(range(wanted))


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (lambda lm: TokenRequest((Row(RowKind.TEXT, 100_000),), 1), "text id 100000"),
        (lambda lm: TokenRequest((Row(RowKind.TEXT, -1),), 1), "text id -1"),
        (lambda lm: TokenRequest((Row(RowKind.SPEECH, EOS),), 1), "speech id 6561 is outside of 0 … 6560"),
        (lambda lm: TokenRequest((Row(RowKind.CONTROL, 2),), 1), "control id 2"),
        (lambda lm: ask(lm, ends=(5,)), "ends: id 5 "),
        (lambda lm: ask(lm, max_tokens=5_120), r"a slot has 5120; ask for \d+ or fewer"),
        (lambda lm: TokenRequest((Row(RowKind.TEXT, 65),) * 5_119, 1), "use a shorter text"),
        (lambda lm: stream(segment()), "no flow and no vocoder"),
    ],
)
def test_what_a_language_model_alone_does_not_take(tokens_only, lm, request_of, words):
    with pytest.raises(InvalidRequest, match=words):
        tokens_only.submit(request_of(lm))


def test_more_tokens_than_slots_wait_and_the_queue_has_an_end(lm):
    with running(lm, settings=EngineSettings(slots=1, max_waiting=1)) as engine:
        first = engine.submit(endless(lm))
        next(iter_of := iter(first))
        waits = engine.submit(ask(lm))
        with pytest.raises(Overloaded, match="busy with other requests"):
            engine.submit(ask(lm))
        iter_of.close()  # cancelled
        assert drawn(waits)
        with pytest.raises(RequestCancelled):
            first.result()


def test_a_newcomer_does_not_wait_for_the_end_of_others(tokens_only, lm):
    long = [tokens_only.submit(endless(lm, seed=seed)) for seed in range(3)]
    assert drawn(tokens_only.submit(ask(lm)))
    assert not any(handle.done for handle in long)
    del long
    gc.collect()


def test_tokens_that_came_before_a_fault_are_heard(lm, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, logger="vivavoce")
    with running(lm, settings=SMALL, chooser=Says()) as engine:
        inject(monkeypatch, engine.stages.lm, "decode", RuntimeError("no"), lambda number, *_: number == 3)
        handle, heard = engine.submit(endless(lm)), []
        with pytest.raises(StageFailed):
            heard.extend(token for tokens in handle for token in tokens)
        assert heard == [0, 1, 2]


def test_a_language_model_alone_warms_up_and_plans_slots_only(lm):
    with Engine(lm, SMALL) as engine:
        alone = drawn(engine.submit(ask(lm)))
        engine.warm_up(streams=2)
        assert drawn(engine.submit(ask(lm))) == alone
    plan = plan_memory(lm, EngineSettings())
    assert (plan.slots, plan.state_bytes, plan.batch_frames) == (32, 0, None)


@pytest.fixture(scope="module")
def without_lm(models):
    """Flow and vocoder; the language model is an outline."""
    with torch.device("meta"):
        return replace(models, lm=SpeechLM(models.config.lm))


@pytest.fixture(scope="module")
def synthesis_only(without_lm):
    with running(without_lm, settings=EngineSettings(state_bytes=64 << 20)) as engine:
        yield engine


def of_tokens(seed=0, who=VOICE, speed=1.0, policy=LOW_LATENCY) -> EngineRequest:
    return arriving(SegmentRequest(who, speech_tokens=(), seed=seed, speed=speed), InputMode.SPEECH, policy)


def pushes(tokens, hops, lookahead=3) -> list[SpeechTokens]:
    """All tokens, so that each hop is made as soon as its lookahead is there."""
    made, sent, spoken = [], 0, 0
    for hop in hops[:-1]:
        spoken += hop
        made.append(SpeechTokens(tokens[sent : spoken + lookahead], hop))
        sent = spoken + lookahead
    return [*made, SpeechTokens(tokens[sent:], len(tokens) - spoken, final=True)]


def test_synthesis_alone_speaks_given_tokens_as_the_whole_engine(models, synthesis_only):
    with running(models) as whole:
        for request in (offline(given(30)), stream(given(40, speed=1.2)), stream(given(35, voice=MUTE))):
            same(synthesis_only.submit(request).result().samples, whole.submit(request).result().samples)
    with pytest.raises(InvalidRequest, match="no language model"):
        synthesis_only.submit(stream(segment()))
    with pytest.raises(InvalidRequest, match="no language model"):
        synthesis_only.submit(TokenRequest((Row(RowKind.TEXT, 1),), 1))


@pytest.mark.parametrize(("seed", "who", "speed"), [(3, VOICE, 1.0), (4, MUTE, 0.8), (5, voice(9, prompt=12), 1.3)])
def test_tokens_that_arrive_sound_like_tokens_that_are_there(synthesis_only, seed, who, speed):
    """Cut as the policy would cut them, each push gives a chunk when it comes."""
    there = given(70, seed, speed, who)
    wanted = list(synthesis_only.submit(stream(there)))
    handle = synthesis_only.submit(of_tokens(there.seed, who, speed))
    chunks = iter(handle)
    made = []
    for push in pushes(there.speech_tokens, (15, 15, 25, 15)):
        handle.text.push(push)
        made.append(next(chunks))
    assert [chunk.final for chunk in made] == [False, False, False, True]
    assert next(chunks, None) is None
    for chunk, one in zip(made, wanted, strict=True):
        same(chunk.samples, one.samples)


def test_pushes_may_come_all_at_once_and_company_changes_nothing(synthesis_only):
    voices = [VOICE, MUTE, voice(9, prompt=12), VOICE]
    tokens = [given(50, seed).speech_tokens for seed in range(4)]

    def spoken(together: bool):
        handles = []
        for seed, who in enumerate(voices):
            handle = synthesis_only.submit(of_tokens(seed, who))
            for push in pushes(tokens[seed], (8, 20, 22)):
                handle.text.push(push)
            handles.append(handle if together else [chunk.samples for chunk in handle])
        return [[chunk.samples for chunk in one] for one in handles] if together else handles

    for alone, among in zip(spoken(False), spoken(True), strict=True):
        for one, other in zip(alone, among, strict=True):
            same(one, other)


def test_a_push_may_give_a_chunk_without_samples(synthesis_only):
    """Few tokens do not reach past the fade at a chunk's end."""
    handle = synthesis_only.submit(of_tokens())
    chunks = iter(handle)
    handle.text.push(SpeechTokens((1, 2, 3, 4), 1))
    assert (len(next(chunks).samples), handle.done) == (0, False)
    handle.text.push(SpeechTokens((5, 6, 7, 8, 9), 8, final=True))
    assert len(next(chunks).samples) == 9 * 960


def test_pushes_that_do_not_fit_are_refused(synthesis_only):
    handle = synthesis_only.submit(of_tokens())
    with pytest.raises(InvalidRequest, match="speech tokens: id 6561"):
        handle.text.push(SpeechTokens((6561,), 1))
    with pytest.raises(InvalidRequest, match="arrival speech"):
        handle.text.push((65,))
    handle.text.push(SpeechTokens((1,), 2))
    with pytest.raises(InvalidRequest, match="hop 2 makes 2 in all, 1 have come"):
        handle.result()
    closed = synthesis_only.submit(of_tokens())
    closed.text.close()
    with pytest.raises(InvalidRequest, match="without a final push"):
        closed.result()


def token_request(**settings):
    return TokenRequest(**{"rows": (Row(RowKind.TEXT, 1),), "max_tokens": 1, **settings})


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (lambda: of_tokens(policy=ChunkPolicy.official()), "seamless"),
        (lambda: of_tokens(policy=None), "seamless"),
        (lambda: arriving(segment(), InputMode.SPEECH), "neither text nor tokens"),
        (lambda: stream(SegmentRequest(VOICE, speech_tokens=())), "text: no tokens to speak"),
        (lambda: token_request(max_tokens=0), "max_tokens: 0"),
        (lambda: token_request(min_tokens=-1), "min_tokens: -1"),
        (lambda: token_request(seed=2**63), "seed"),
        (lambda: token_request(rows=()), "prompt: it has no rows"),
        (lambda: arriving(given(4), InputMode.TOKENS), "speech tokens"),
    ],
)
def test_requests_that_make_no_sense(request_of, words):
    with pytest.raises(InvalidRequest, match=words):
        request_of()


def test_one_whose_chunk_fails_harms_no_other(synthesis_only, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, logger="vivavoce")
    flow = synthesis_only.stages.flow
    alone = synthesis_only.submit(offline(given(20))).result()
    inject(
        monkeypatch,
        flow,
        "start",
        RuntimeError("no"),
        lambda _, work: any(one.stream.conditioning is MUTE for one in work),
    )
    spared, victim = synthesis_only.submit(offline(given(20))), synthesis_only.submit(offline(given(20, voice=MUTE)))
    with pytest.raises(StageFailed):
        victim.result()
    same(spared.result().samples, alone.samples)


@pytest.mark.slow
def test_synthesis_alone_warms_up_and_many_streams_may_stay_open(without_lm):
    with Engine(without_lm, EngineSettings(state_bytes=16 << 20)) as engine:
        engine.warm_up(seconds=0)
        assert engine.costs.flow.batches > 0
        handles = [engine.submit(of_tokens(seed)) for seed in range(40)]
        for handle in handles:
            handle.text.push(SpeechTokens(tuple(range(6)), 6, final=True))
        assert {len(handle.result().samples) for handle in handles} == {6 * 960}
        assert np.isfinite(handles[0].result().timings.finished_s)


def test_a_device_behind_its_host_is_waited_for_after_a_prompts_state(without_lm, monkeypatch):
    """The last steps of a new voice's prompt fill the queue; nothing else is running then."""
    made: list[QueueEvent] = []
    done = -1

    def mark(queue):
        made.append(QueueEvent(queue.clock()))
        return made[-1]

    def reached(mark, wait=False):
        nonlocal done
        place = next(place for place, one in enumerate(made) if one is mark)
        done = max(done, place) if wait else done
        return place <= done

    monkeypatch.setattr(DeviceQueue, "mark", mark)
    monkeypatch.setattr(QueueEvent, "reached", reached)
    with running(without_lm) as engine:
        spoken = engine.submit(stream(given(20, voice=voice(9))))
        listener = threading.Thread(target=spoken.result, daemon=True)
        listener.start()
        listener.join(PATIENCE_S)
        assert not listener.is_alive()
