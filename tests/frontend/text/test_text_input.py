"""What is left out of a text before it is read, however the text is torn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.frontend.text.text_input import TextFilter, readable

LEFT_OUT = [
    ("Well done \ud83d\ude00 my friend.", "Well done 😀 my friend."),
    ("Half \ud83d of it, \ude00 or two \ude00\ud83d halves\ud83d", "Half  of it,  or two  halves"),
    ("A\x00 bell\x07 rings.\x9f\ufffd", "A bell rings."),
    ("\x1b[1;31mRed\x1b[0m alert\x1b", "Red alert"),
    ("Two\tlines\r\nand\x85more", "Two\tlines\r\nand\x85more"),
    ("<think>Short.</think>Hello.", " Hello."),
    ("<THINK>\nLong,\n1 < 2.\n</Think>\n\nHello <thinking budget='9'>hm</thinking > there.", " \n\nHello   there."),
    ("Yes.<reasoning>No, <think>wait</think> \ud83d, so\x00</reasoning>Go.", "Yes. Go."),
    ("Hello. <think>It never ends, \ud83d\ude00", "Hello.  "),
    ("Hello.</think>You.", "Hello. You."),
    ("<think>a<think>b</think>c</think>Hello.", " c Hello."),
    ('<tool_call>{"name": "x"}</tool_call> Done.<Function_Call>\n1 < 2</function_call>', "  Done. "),
    ("Set <tool_call> to five. <function_calls>", "Set <tool_call> to five. <function_calls>"),
    ("My <thought> is this: so <tool_result> is five.", "My <thought> is this: so <tool_result> is five."),
    ("<analysis>The market rose.</analysis>", "<analysis>The market rose.</analysis>"),
    ("A <tool> and <tool_calls_b> are no calls.", "A <tool> and <tool_calls_b> are no calls."),
    ("我<think>想一想</think>好。", "我 好。"),
    ("Write `<think>` and <thin> and <b>1</b> <", "Write `<think>` and <thin> and <b>1</b> <"),
    ("", ""),
]


def taken(pieces, reasoning="silent"):
    intake = TextFilter(reasoning)
    kept = "".join(intake.stream(pieces))
    return kept, [intake.original(at) for at in range(len(kept) + 1)]


@pytest.mark.parametrize(("text", "kept"), LEFT_OUT)
@given(data=st.data())
def test_it_is_left_out_however_the_text_is_torn(text, kept, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = taken([text])
    assert whole[0] == kept
    assert taken(pieces) == taken(text) == whole


@pytest.mark.parametrize(("text", "kept"), LEFT_OUT)
def test_each_character_is_known_to_stand_where_it_stood(text, kept):
    places = taken([text])[1]
    assert places[-1] == len(text)
    for one, at in zip(kept, places, strict=False):
        assert text[at] == one or one == " " or text[at : at + 2] == "\ud83d\ude00"


def test_reasoning_that_is_read_loses_its_tags():
    text = "<think>Short.</think>Hello\x00.<tool_call>{}</tool_call>"
    assert taken([text], "read")[0] == taken(text, "read")[0] == " Short. Hello. "


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("I should be brief.</think>Hello", " Hello"),
        ("\x00Hm, \ud83d\ude00 so\x00.\n</Thinking >\n\n<tool_call>{}</tool_call>He\x00llo", " \n\n Hello"),
        ("<think>a<think>b</think>c</think>Hello.", " Hello."),
        ("Be kind.<|endofprompt|>\x00So be it.</think>Hello", "Be kind.<|endofprompt|> Hello"),
        ("Close it with `</think>` and go on.</tool_call>", "Close it with ` ` and go on. "),
        ("Use the </think> tag to end it.</think>", "Use the   tag to end it. "),
        ('Close it with </analysis>\nin XML. Type "</think>\nNow', 'Close it with </analysis>\nin XML. Type " \nNow'),
    ],
)
def test_what_stands_before_a_lone_closing_tag_of_a_whole_text_is_reasoning(text, kept):
    intake = TextFilter()
    assert intake.add(text, is_last=True) == kept
    places = [intake.original(at) for at in range(len(kept) + 1)]
    assert places[-1] == len(text)
    assert places == sorted(places)
    assert all(text[at] == one or one == " " for one, at in zip(kept, places, strict=False))


def test_a_piece_is_held_no_longer_than_it_may_change():
    intake = TextFilter()
    given = [intake.add(piece) for piece in ("One <", " two <th", "in> \ud83d", "three", " <think>four")]
    assert given == ["One ", "< two ", "<thin> ", "three", "  "]


@given(st.text(st.characters(), max_size=40))
def test_any_text_can_be_written_in_utf_8(text):
    assert len(readable(text).encode("utf-8").decode()) <= len(text)
