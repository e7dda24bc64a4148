from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.models.lm.interleave import Row, RowKind, TextInterleaver

VOCABULARY = Vocabulary(100, 103, sos=0, task=1, eos=100, fill=102, masked_before_minimum=100)


def interleaver(**settings):
    return TextInterleaver(VOCABULARY, (5, 15), **settings)


def text(ids):
    return [Row(RowKind.TEXT, i) for i in ids]


def run(stream, pieces, end_after):
    """Drive a stream with a model that says 1, 2, 3 … and ends after that many ids; return all rows fed."""
    fed, spoken, pieces = [], [], iter(pieces)
    while not stream.done:
        rows = stream.next_rows()
        if rows is None:
            piece = next(pieces, None)
            stream.close() if piece is None else stream.push(piece)
            continue
        fed.append(list(rows))
        token = VOCABULARY.fill
        if stream.ids_until_control() != 0:
            ended = VOCABULARY.eos in stream.allows() and len(stream.decoded) >= end_after
            token = VOCABULARY.eos if ended else len(stream.decoded) % 100
        speech = stream.accept(token)
        if speech is not None:
            spoken.append(speech)
    return fed, spoken


def test_waits_for_a_whole_block_of_text():
    stream = interleaver()
    stream.push([1, 2, 3, 4])
    assert stream.next_rows() is None
    stream.push([5])
    assert stream.next_rows() == [Row(RowKind.CONTROL, 0), *text([1, 2, 3, 4, 5])]


def test_a_fill_comes_after_fifteen_tokens():
    stream = interleaver()
    stream.push(range(10))
    for count in range(15):
        assert stream.next_rows() is not None
        assert stream.ids_until_control() > 0
        assert stream.accept(count) == count
    stream.next_rows()
    assert (stream.ids_until_control(), stream.allows()) == (0, (VOCABULARY.fill,))
    assert stream.accept(VOCABULARY.fill) is None
    assert stream.next_rows() == text([5, 6, 7, 8, 9])


def test_a_prompt_is_interleaved_with_its_speech():
    stream = interleaver(prompt_text=range(10), prompt_speech=range(20))
    stream.push([50])
    rows = stream.next_rows()
    kinds = [row.kind for row in rows]
    assert (
        kinds
        == [RowKind.CONTROL] + [RowKind.TEXT] * 5 + [RowKind.SPEECH] * 15 + [RowKind.TEXT] * 5 + [RowKind.SPEECH] * 5
    )
    for count in range(10):
        assert stream.ids_until_control() > 0
        stream.next_rows()
        stream.accept(count)
    assert (stream.ids_until_control(), stream.allows()) == (0, (VOCABULARY.fill,))


SYSTEM = (70, 71)


@pytest.mark.parametrize("prompted", [0, 20])
def test_a_system_prompt_comes_first_as_a_whole(prompted):
    """Rows after it are those without one, but that the official way says 15 tokens before it has seen any text."""
    settings = {"prompt_text": range(prompted // 2), "prompt_speech": range(prompted)}
    plain, told = interleaver(**settings), interleaver(**settings, system_text=SYSTEM)
    fed, spoken = run(plain, [range(40, 52)], 30)
    fed_told, spoken_told = run(told, [range(40, 52)], 30)
    assert fed_told == [[fed[0][0], *text(SYSTEM), *fed[0][1:]], *fed[1:]]
    assert spoken_told == spoken
    official = interleaver(**settings, system_text=SYSTEM, at_once=True)
    official.push([40])
    first = official.next_rows()
    assert first == [fed[0][0], *text(SYSTEM), *(fed[0][1:] if prompted else ())]


@given(st.lists(st.integers(0, 9), max_size=40), st.data())
def test_how_the_text_is_cut_does_not_matter(ids, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    edges = [0, *cuts, len(ids)]
    pieces = [ids[a:b] for a, b in pairwise(edges)]
    assert run(interleaver(), pieces, 30) == run(interleaver(), [ids], 30)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_every_text_token_is_fed_in_order(ids):
    fed, _ = run(interleaver(), [ids], 40)
    seen = [row.id for rows in fed for row in rows if row.kind is RowKind.TEXT]
    assert seen == ids


@pytest.mark.parametrize("ratio", [2.0, 5.0])
def test_speech_that_never_ends_is_ended(ratio):
    stream = interleaver(max_ratio=ratio)
    _, spoken = run(stream, [[1, 2, 3, 4, 5, 6]], end_after=10**9)
    assert len(stream.decoded) <= 2 * 16 + ratio * 6
    assert stream.done
    assert spoken
