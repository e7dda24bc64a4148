"""Words as they are written, and what is spoken for each of them."""

from __future__ import annotations

import pytest

from vivavoce.frontend.text.word_spans import words_of


def pairs(text: str, spoken: str) -> list[tuple[str, str]]:
    found = words_of(text, spoken, [(at, at + 1) for at in range(len(spoken))])
    return [(text[one.start : one.end], spoken[one.first : one.last]) for one in found]


@pytest.mark.parametrize(
    ("text", "spoken", "words"),
    [
        ("Yes.", "Yes.", [("Yes.", "Yes")]),
        (
            "It cost $100 million, and 3 km",
            "It cost one hundred million dollars, and three kilometers.",
            [("It", "It"), ("cost", "cost"), ("$100", "one hundred"), ("million,", "million dollars"),
             ("and", "and"), ("3", "three"), ("km", "kilometers")],
        ),
        ("Dr. Smith", "Doctor Smith.", [("Dr.", "Doctor"), ("Smith", "Smith")]),
        ("10:30", "ten thirty.", [("10:30", "ten thirty")]),
        ("well — then", "well — then.", [("well", "well"), ("then", "then")]),
        (
            "at +44 20 7946!",
            "at plus four four, two zero, seven nine four six!",
            [("at", "at"), ("+44", "plus four four"), ("20", "two zero"), ("7946!", "seven nine four six")],
        ),
        ("salt & pepper", "salt and pepper.", [("salt", "salt"), ("&", "and"), ("pepper", "pepper")]),
        (
            "at 11 p.m., he",
            "at eleven PM, he.",
            [("at", "at"), ("11", "eleven"), ("p.m.,", "PM"), ("he", "he")],
        ),
        (
            "| Bob | 72 |\n|---|---|\n| Ann | 12 |",
            "Bob, seventy two. Ann, twelve.",
            [("Bob", "Bob"), ("72", "seventy two"), ("Ann", "Ann"), ("12", "twelve")],
        ),
        ("* 1972 &", "nineteen seventy two and.", [("1972", "nineteen seventy two"), ("&", "and")]),
        ("<br> 5 <b>6</b>", "five six.", [("5", "five"), ("<b>6</b>", "six")]),
        ("4 # 5", "four five.", [("4", "four"), ("5", "five")]),
        (
            "fruit, e.g. for lunch.",
            "fruit, for example for lunch.",
            [("fruit,", "fruit"), ("e.g.", "for example"), ("for", "for"), ("lunch.", "lunch")],
        ),
        ("it, i.e. that.", "it, that is that.", [("it,", "it"), ("i.e.", "that is"), ("that.", "that")]),
        ("is 5 five five.", "is five five five.", [("is", "is"), ("5", "five"), ("five", "five"), ("five.", "five")]),
        ("No. 5 number five", "number five number five", [("No.", "number"), ("5", "five"), ("number", "number"),
                                                         ("five", "five")]),
        ("you & and me", "you and and me", [("you", "you"), ("&", "and"), ("and", "and"), ("me", "me")]),
        ("5 ° degrees", "five degrees degrees", [("5", "five"), ("°", "degrees"), ("degrees", "degrees")]),
        ("5 ° warm. § 3", "five degrees warm. section three", [("5", "five"), ("°", "degrees"), ("warm.", "warm"),
                                                              ("§", "section"), ("3", "three")]),
        ("$5 $5 & five", "five dollars five dollars and five", [("$5", "five dollars"), ("$5", "five dollars"),
                                                               ("&", "and"), ("five", "five")]),
        ("well / well done", "well well done", [("well", "well"), ("well", "well"), ("done", "done")]),
        ("½ kg 3 oz", "x y z", [("½", "x"), ("kg", "x"), ("3", "y"), ("oz", "z")]),
        ("我有100元，你呢？", "我有一百元，你呢？",
         [("我", "我"), ("有", "有"), ("100", "一百"), ("元，", "元"), ("你", "你"), ("呢？", "呢")]),
    ],
)  # fmt: skip
def test_each_word_has_what_speaks_it(text, spoken, words):
    assert pairs(text, spoken) == words


def test_marks_behind_a_word_are_not_counted_and_places_are_those_of_the_input():
    (one,) = words_of("Hi!", "Hi!", [(0, 2), (2, 3)], start=7)
    assert one == (7, 10, 0, 1)


def test_a_text_without_words_has_none():
    assert words_of("…", "…", [(0, 1)]) == ()
