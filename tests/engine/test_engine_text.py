"""Text that arrives while speech is made of it."""

import threading

import pytest

from tests.engine.engine_helpers import (
    PATIENCE_S,
    VOICE,
    arriving,
    assert_clean,
    feed,
    given,
    offline,
    running,
    same,
    segment,
    stream,
)
from vivavoce.engine.request import InputMode, SamplingParams, SegmentRequest
from vivavoce.errors import InvalidRequest, RequestCancelled

IDS = tuple(range(65, 85))
ROOM = "vivavoce.engine.intake.MAX_FRAMES"


def first(size=2, seed=1):
    return segment(None, text=IDS[:size], seed=seed)


class Source:
    """Parts of a text; knows how many were taken."""

    def __init__(self, *parts):
        self.parts, self.taken = iter(parts), 0

    def __next__(self):
        part = next(self.parts)
        self.taken += 1
        if isinstance(part, Exception):
            raise part
        return part


def outlived(handle, error, match):
    """Samples of the chunks that come before the error."""
    heard = []
    with pytest.raises(error, match=match):
        heard.extend(len(chunk.samples) for chunk in handle)
    return sum(heard)


def close(handle, *parts):
    """Bring the parts, which are the last ones, and listen to the end."""
    for part in parts:
        handle.text.push(part)
    handle.text.close()
    return handle.result()


def test_tokens_arrive(engine):
    handle = engine.submit(arriving(first(), InputMode.TOKENS))
    source = Source(IDS[2:5], (), IDS[5:9], IDS[9:])
    feed(handle.text, source)
    spoken = handle.result()
    together = close(engine.submit(arriving(first(20), InputMode.TOKENS)))
    assert spoken.tokens == together.tokens
    same(spoken.samples, together.samples)
    assert source.taken == 4


def test_segments_arrive(engine):
    requests = [segment(20, seed=1), given(6), segment(5, seed=2)]
    handle = engine.submit(arriving(requests[0], InputMode.SEGMENTS))
    feed(handle.text, Source(*requests[1:]))
    spoken = handle.result()
    together = engine.submit(stream(*requests)).result()
    assert spoken.tokens == together.tokens
    same(spoken.samples, together.samples)


def test_no_text_at_all_is_an_end(engine):
    spoken = close(engine.submit(arriving(None, InputMode.SEGMENTS)))
    assert (spoken.tokens, len(spoken.samples)) == ((), 0)


def test_text_is_read_when_it_is_wanted(engine):
    """A source that never ends is read as speech goes on, not before."""
    source = Source(*([IDS[:5]] * 1_000))
    handle = engine.submit(arriving(first(), InputMode.TOKENS))
    feed(handle.text, source)
    chunks = iter(handle)
    for _ in range(2):
        next(chunks)
    chunks.close()
    # Two chunks are some fifty tokens of speech, to which a block of five words brings fifteen.
    assert source.taken < 20


@pytest.mark.parametrize("arrival", [InputMode.TOKENS, InputMode.SEGMENTS])
def test_a_failing_source_is_told_after_what_it_brought(engine, arrival):
    part = segment(3) if arrival is InputMode.SEGMENTS else IDS[2:6]
    handle = engine.submit(arriving(first(6), arrival))
    feed(handle.text, Source(part, ConnectionError("the model behind hung up")))
    assert outlived(handle, ConnectionError, "hung up") > 3 * 960


def test_a_starved_request_can_be_cancelled(engine):
    handle = engine.submit(arriving(first(), InputMode.TOKENS))
    assert handle.text.wait_until_wanted()
    handle.cancel()
    with pytest.raises(RequestCancelled):
        handle.result()
    assert not handle.text.wait_until_wanted()
    handle.text.push(IDS)
    handle.text.close()


def test_a_dropped_listener_lets_its_source_go(engine):
    begun = threading.Event()

    class Blocking(Source):
        def __next__(self):
            begun.set()
            return super().__next__()

    handle = engine.submit(arriving(first(), InputMode.TOKENS))
    feed(handle.text, Blocking(IDS, IDS, IDS))
    assert begun.wait(PATIENCE_S)
    del handle
    assert_clean(engine)
    for thread in threading.enumerate():
        if thread.name == "vivavoce-text":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_too_much_text_is_refused_after_what_there_is_room_for(models, monkeypatch):
    """The voice's 30 tokens and 40 more."""
    monkeypatch.setattr(ROOM, 2 * 70)
    with running(models) as engine:
        handle = engine.submit(arriving(first(), InputMode.TOKENS))
        feed(handle.text, Source(*([IDS] * 100)))
        assert outlived(handle, InvalidRequest, "40 speech tokens") == 40 * 960


def test_a_segment_that_does_not_fit_spares_those_before(models, monkeypatch):
    monkeypatch.setattr(ROOM, 2 * 70)
    with running(models) as engine:
        handle = engine.submit(arriving(segment(5), InputMode.SEGMENTS))
        with pytest.raises(InvalidRequest, match="more than the 40 that fit"):
            handle.text.push(given(41))
        assert handle.text.wait_until_wanted()
        assert len(close(handle, given(7)).samples) == 12 * 960


def test_text_of_the_wrong_form_is_refused(engine):
    handle = engine.submit(arriving(segment(5), InputMode.SEGMENTS))
    with pytest.raises(InvalidRequest, match="arrival segments"):
        handle.text.push(IDS)
    assert len(close(handle, segment(5, seed=3)).samples) == 10 * 960


def test_text_after_the_end_is_refused(engine):
    handle = engine.submit(arriving(segment(None), InputMode.TOKENS))
    handle.text.close()
    handle.text.close()
    with pytest.raises(InvalidRequest, match="the end of the text was announced"):
        handle.text.push(IDS)
    assert len(handle.result().samples) > 0
    assert engine.healthy


@pytest.mark.parametrize("arrival", [InputMode.TOKENS, InputMode.SEGMENTS])
def test_draining_does_not_wait_for_text_that_never_comes(models, arrival):
    with running(models) as engine:
        handle = engine.submit(arriving(first(), arrival))
        assert handle.text.wait_until_wanted()
        engine.close(drain=True)
        assert len(handle.result().samples) > 0


def test_a_text_of_many_blocks_in_company(engine):
    """Text comes to each while the others speak."""
    handles = [engine.submit(arriving(first(seed=seed), InputMode.TOKENS)) for seed in (1, 2, 3)]
    for handle in handles:
        feed(handle.text, Source(*((one,) for one in IDS[2:14])))
    alone = close(engine.submit(arriving(first(14, seed=2), InputMode.TOKENS)))
    assert [handle.result() for handle in handles][1].tokens == alone.tokens


def test_an_end_without_tokens_is_silence(models):
    """The official rule may end a segment before it has begun; what comes after it is heard."""

    def choose(scores, state):
        stop = scores[:, 6561:].argmax(-1) + 6561
        return stop.where(state.seeds == 1, scores[:, :6561].argmax(-1))

    silent = SegmentRequest(VOICE, text=(65,), sampling=SamplingParams(min_ratio=0.0), seed=1)
    with running(models, official=True, chooser=choose) as engine:
        for request_of in (offline, stream):
            spoken = engine.submit(request_of(silent, segment(4, seed=2), silent)).result()
            assert [len(tokens) for tokens in spoken.tokens] == [0, 4, 0]
            assert len(spoken.samples) == 4 * 960
