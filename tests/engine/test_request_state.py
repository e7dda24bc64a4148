"""A request's books: what can be cut, and when its listener runs dry."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.engine.chunk_policy import AttentionMode, ChunkPolicy
from vivavoce.engine.request import InputMode, SpeechTokens
from vivavoce.engine.request_state import Phase, RequestState, SequenceState
from vivavoce.errors import InvalidRequest
from vivavoce.rates import Rates

RATES = Rates(sample_rate=24_000, samples_per_frame=480, tokens_per_second=25)


def a_request(policy=ChunkPolicy.low_latency(), **fields):
    return RequestState(0, policy, 0.0, RATES, None, **fields)


def a_sequence(policy, prompt_tokens=50, **fields):
    request, sequence = a_request(policy), SequenceState(None, prompt_rows=10, prompt_tokens=prompt_tokens, **fields)
    request.add(sequence)
    return sequence


def cuts(sequence, total, step):
    """All cuts of a sequence whose tokens come `step` at a time."""
    made = []
    while not sequence.finished:
        sequence.produced = min(total, sequence.produced + step)
        sequence.phase = Phase.DECODED if sequence.produced == total else Phase.DECODING
        while (cut := sequence.next_chunk(0.0)) is not None:
            assert sequence.may_cut(0.0)
            assert sequence.lacking(0.0) == 0
            made.append(cut)
            sequence.chunks += 1
            if sequence.pushed:
                sequence.pushed.popleft()
            sequence.spoken += cut.hop
            sequence.finished = cut.final
        assert not sequence.may_cut(0.0)
    return made


def plain(made):
    """Hop, whether it is final, attention and tokens seen of each."""
    return [cut[1:5] for cut in made]


@given(st.integers(1, 600), st.integers(1, 200), st.sampled_from(["low_latency", "equal", "exponential", "official"]))
def test_cuts_cover_all_tokens_and_do_not_depend_on_how_they_come(total, step, name):
    policy = ChunkPolicy.parse(name)
    made = cuts(a_sequence(policy, phase=Phase.DECODING), total, step)
    assert sum(cut.hop for cut in made) == total
    assert [cut.final for cut in made] == [False] * (len(made) - 1) + [True]
    assert made[-1].hop >= 1
    assert plain(made) == plain(cuts(a_sequence(policy, phase=Phase.DECODING), total, total))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, [(100, True, AttentionMode.FULL, 100)]),
        (
            ChunkPolicy.official(),
            [
                (25, False, AttentionMode.GRID, 28),
                (50, False, AttentionMode.GRID, 78),
                (25, True, AttentionMode.FULL, 100),
            ],
        ),
        (
            ChunkPolicy.overlapping(),
            [
                (100, False, AttentionMode.FULL, 120),
                (100, False, AttentionMode.FULL, 220),
                (70, True, AttentionMode.FULL, 270),
            ],
        ),
    ],
)
def test_offline_work_is_one_cut_and_official_ones_are_of_the_official_kind(policy, expected):
    total = max(seen for *_, seen in expected)
    assert plain(cuts(a_sequence(policy, phase=Phase.DECODING), total, 7)) == expected


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_the_last_chunk_is_never_empty(lookahead):
    policy = ChunkPolicy.equal(hop=25, lookahead=lookahead)
    assert [cut.hop for cut in cuts(a_sequence(policy, phase=Phase.DECODING), 50, 1)][-1] >= 1


@pytest.mark.parametrize(
    ("policy", "fields", "expected"),
    [
        (ChunkPolicy.low_latency(), {"spoken": 40, "chunks": 2, "produced": 68}, (25, 50, 180)),
        (ChunkPolicy.official(), {"spoken": 40, "produced": 68}, (25, 2 * (50 + 40 + 25), 0)),
        (ChunkPolicy.low_latency(), {"lacks_prompt": True}, (0, 100, 0)),
        (ChunkPolicy.low_latency(), {"flow": SimpleNamespace(known=None), "produced": 18}, (15, 130, 0)),
    ],
)
def test_frames_count_what_the_flow_computes(policy, fields, expected):
    chunk = a_sequence(policy, **fields).next_chunk(0.0)
    assert (chunk.hop, chunk.frames, chunk.past) == expected


def test_frames_of_overlapping_chunks_count_the_shared_tokens():
    overlapping = a_sequence(ChunkPolicy.overlapping(), spoken=100, chunks=1, produced=220)
    overlapping.request.rates = Rates(22_050, 256, 50)
    chunk = overlapping.next_chunk(0.0)
    assert (chunk.hop, chunk.frames, chunk.past) == (100, 292, 0)  # 50 of the prompt, 120 seen


def test_a_listener_waits_for_what_comes_late():
    request = a_request()
    assert request.hand_out(1.0, now=5.0) == 0.0
    assert request.dry_at == 6.0
    assert request.hand_out(1.0, now=5.5) == 0.0
    assert request.hand_out(1.0, now=7.5) == pytest.approx(0.5)
    assert request.dry_at == pytest.approx(8.5)  # the gap moved everything after it


def test_late_text_is_not_the_engine_s_underrun():
    request = a_request(complete=False)
    request.hand_out(1.0, now=1.0)
    request.take(None, now=3.0)
    assert request.hand_out(1.0, now=3.2) == 0.0
    assert request.dry_at == pytest.approx(4.2)
    request.complete = False
    request.take(None, now=3.5)  # in time: nothing to excuse
    assert request.hand_out(1.0, now=4.7) == pytest.approx(0.5)


def test_starved_means_that_only_text_helps():
    sequence = a_sequence(ChunkPolicy.low_latency(), phase=Phase.STARVED)
    request = sequence.request
    assert request.starved
    for phase in (Phase.DECODING, Phase.DECODED):
        sequence.phase = phase
        assert not request.starved
    request.complete = False
    assert request.starved


def pushed(*pushes):
    """A sequence whose speech tokens arrive, after these pushes."""
    request = a_request(complete=False, arrival=InputMode.SPEECH)
    request.add(SequenceState(None, prompt_tokens=50, phase=Phase.STARVED, pushed=deque()))
    for push in pushes:
        request.take(push, now=0.0)
    return request.sequences[0]


def test_each_push_of_speech_tokens_is_a_cut():
    sequence = pushed(SpeechTokens((1,) * 20, 12), SpeechTokens((2,) * 5, 9), SpeechTokens((3,), 5, final=True))
    made = cuts(sequence, 26, 26)
    assert plain(made) == [
        (12, False, AttentionMode.BLOCKS, 20),
        (9, False, AttentionMode.BLOCKS, 25),
        (5, True, AttentionMode.BLOCKS, 26),
    ]


def test_between_pushes_nothing_is_cut():
    sequence = pushed(SpeechTokens((1,) * 20, 12))
    assert not sequence.request.starved
    sequence.pushed.popleft()
    sequence.spoken = 12
    assert sequence.request.starved
    assert not sequence.may_cut(0.0)


@pytest.mark.parametrize(
    "pushes",
    [
        [SpeechTokens((1,), 2)],
        [SpeechTokens((1,), 0)],
        [SpeechTokens((1, 2, 3), 2), SpeechTokens((4,), 3)],
        [SpeechTokens((1,), 1, final=True), SpeechTokens((1,), 1)],
        [SpeechTokens((1,), 1), None],
    ],
)
def test_pushes_that_do_not_add_up_are_refused(pushes):
    with pytest.raises(InvalidRequest, match="speech tokens"):
        pushed(*pushes)
