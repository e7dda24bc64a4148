"""Which segment a chunk speaks, and whether a segment was ended for its length."""

from dataclasses import replace

import pytest

from tests.engine.engine_helpers import arriving, given, offline, running, segment, stream
from vivavoce.engine.request import Arrival, SamplingParams
from vivavoce.errors import RequestCancelled

THREE = (given(30), segment(12), segment(25, seed=1))
SAMPLES = (30 * 960, 12 * 960, 25 * 960)


def ends_after_its_seed(scores, state):
    """A chooser: speech of so many tokens as the segment's seed says, then the first stop id."""
    stop = scores[:, 6561:].argmax(-1) + 6561
    return stop.where(state.counts >= state.seeds, scores[:, :6561].argmax(-1))


def of_ratio(ratio, seed):
    """Three text ids, spoken in three times `ratio` tokens at most."""
    return replace(segment(None, seed=seed), sampling=SamplingParams(min_ratio=0, max_ratio=ratio))


@pytest.fixture(scope="module")
def engine(models):
    with running(models) as engine:
        yield engine


@pytest.fixture(scope="module")
def obedient(models):
    with running(models, chooser=ends_after_its_seed) as engine:
        yield engine


@pytest.mark.parametrize("request_of", [stream, offline])
def test_each_chunk_speaks_one_segment_in_order(engine, request_of):
    chunks = list(engine.submit(request_of(*THREE)))
    places = [chunk.segment for chunk in chunks]
    assert places == sorted(places)
    sizes = [sum(len(chunk.samples) for chunk in chunks if chunk.segment == place) for place in range(3)]
    assert tuple(sizes) == SAMPLES
    assert engine.submit(request_of(*THREE)).result().segment_samples == SAMPLES


def test_segments_are_numbered_as_they_arrive(engine):
    handle = engine.submit(arriving(None, Arrival.SEGMENTS))
    for one in (segment(10), segment(15)):
        handle.text.push(one)
    handle.text.close()
    chunks = list(handle)
    assert {chunk.segment for chunk in chunks} == {0, 1}
    assert (chunks[-1].final, chunks[-1].segment) == (True, 1)


def test_an_empty_last_chunk_has_the_last_segments_place(obedient):
    """The last segment turns out to be empty when all before it was sent."""
    *spoken, last = obedient.submit(stream(given(10), of_ratio(4, seed=0)))
    assert {chunk.segment for chunk in spoken} == {0}
    assert (len(last.samples), last.final, last.segment) == (0, True, 1)


@pytest.mark.parametrize("request_of", [stream, offline])
def test_speech_that_is_ended_at_its_most_tokens_is_cut(obedient, request_of):
    """Twelve tokens at most: who would go on is cut, who ends by itself, or was asked for so many, is not."""
    exact = replace(segment(12, seed=50), sampling=SamplingParams(exact_tokens=12, max_ratio=4))
    requests = [of_ratio(4, seed=50), of_ratio(4, seed=11), exact, given(12)]
    handle = obedient.submit(request_of(*requests))
    spoken = handle.result()
    assert [len(tokens) for tokens in spoken.tokens] == [12, 11, 12, 12]
    assert spoken.cut == (True, False, False, False)
    assert handle.cut == spoken.cut


def test_arriving_text_is_never_cut(engine):
    handle = engine.submit(arriving(segment(None), Arrival.TOKENS))
    handle.text.close()
    assert handle.result().cut == (False,)


def test_who_cancels_learns_nothing_of_cuts(engine):
    handle = engine.submit(stream(*THREE))
    handle.cancel()
    assert handle.cut == ()
    with pytest.raises(RequestCancelled):
        handle.result()
