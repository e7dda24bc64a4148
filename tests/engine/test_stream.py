"""A request's books: what can be cut, and when its listener runs dry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.stream import Cut, Kind, Phase, Segment, Stream
from vivavoce.rates import Rates

RATES = Rates(sample_rate=24_000, samples_per_frame=480, tokens_per_second=25)


def a_segment(policy, prompt_tokens=50, **fields):
    stream = Stream(0, policy, 0.0, RATES)
    segment = Segment(stream, 0, prompt_rows=10, prompt_tokens=prompt_tokens, **fields)
    stream.segments.append(segment)
    return segment


def cuts(segment, total, step):
    """All cuts of a segment whose tokens come `step` at a time."""
    made = []
    while not segment.finished:
        segment.produced = min(total, segment.produced + step)
        segment.phase = Phase.DECODED if segment.produced == total else Phase.DECODING
        while (cut := segment.next_cut(0.0)) is not None:
            assert segment.may_cut(0.0)
            assert segment.tokens_lacking(0.0) == 0
            made.append(cut)
            segment.chunks += 1
            segment.spoken += cut.hop
            segment.finished = cut.final
        assert not segment.may_cut(0.0)
    return made


@given(st.integers(1, 600), st.integers(1, 200), st.sampled_from(["low_latency", "equal", "exponential", "official"]))
def test_cuts_cover_all_tokens_and_do_not_depend_on_how_they_come(total, step, name):
    policy = ChunkPolicy.parse(name)
    made = cuts(a_segment(policy, phase=Phase.DECODING), total, step)
    assert sum(cut.hop for cut in made) == total
    assert [cut.final for cut in made] == [False] * (len(made) - 1) + [True]
    assert made[-1].hop >= 1
    assert made == cuts(a_segment(policy, phase=Phase.DECODING), total, total)


def test_official_chunks_are_of_the_official_kind():
    kinds = [cut.kind for cut in cuts(a_segment(ChunkPolicy.official(), phase=Phase.DECODING), 100, 7)]
    assert kinds == [Kind.GRID] * (len(kinds) - 1) + [Kind.WHOLE]


def test_offline_work_is_one_cut():
    assert cuts(a_segment(None, phase=Phase.DECODING), 100, 7) == [Cut(100, True, Kind.WHOLE)]


@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_the_last_chunk_is_never_empty(lookahead):
    policy = ChunkPolicy.equal(hop=25, lookahead=lookahead)
    assert [cut.hop for cut in cuts(a_segment(policy, phase=Phase.DECODING), 50, 1)][-1] >= 1


def test_frames_count_what_the_flow_computes():
    chunk, official = a_segment(ChunkPolicy.low_latency(), spoken=40), a_segment(ChunkPolicy.official(), spoken=40)
    assert chunk.frames(Cut(25, False, Kind.CHUNK)) == 50
    assert chunk.past_frames(Cut(25, False, Kind.CHUNK)) == 180
    assert official.frames(Cut(25, False, Kind.GRID)) == 2 * (50 + 40 + 25)
    assert official.past_frames(Cut(25, False, Kind.GRID)) == 0
    assert chunk.frames(None) == 100


def test_a_listener_waits_for_what_comes_late():
    stream = Stream(0, ChunkPolicy.low_latency(), 0.0, RATES)
    assert stream.hand_out(1.0, now=5.0) == 0.0
    assert stream.dry_at == 6.0
    assert stream.hand_out(1.0, now=5.5) == 0.0
    assert stream.hand_out(1.0, now=7.5) == pytest.approx(0.5)
    assert stream.dry_at == pytest.approx(8.5)  # the gap moved everything after it


def test_late_text_is_nobodys_underrun():
    stream = Stream(0, ChunkPolicy.low_latency(), 0.0, RATES)
    stream.hand_out(1.0, now=1.0)
    stream.excuse(now=3.0)
    assert stream.hand_out(1.0, now=3.2) == 0.0
    assert stream.dry_at == pytest.approx(4.2)
    stream.excuse(now=3.5)  # in time: nothing to excuse
    assert stream.hand_out(1.0, now=4.7) == pytest.approx(0.5)


def test_starved_means_that_only_text_helps():
    segment = a_segment(ChunkPolicy.low_latency(), phase=Phase.STARVED)
    stream = segment.stream
    assert stream.starved
    segment.phase = Phase.DECODING
    assert not stream.starved
    segment.phase = Phase.DECODED
    assert not stream.starved
    stream.complete = False
    assert stream.starved
