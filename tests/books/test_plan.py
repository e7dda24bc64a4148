"""A book, a cast and pauses become segments: all of the text, each character once, no sentence torn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.books.make_book import make_book
from vivavoce.errors import InvalidRequest
from vivavoce_books.book import Block, BlockKind, Book, Chapter, LeftOut, open_book
from vivavoce_books.cast import NARRATOR, Part
from vivavoce_books.plan import MAX_CHARS, Check, Pauses, Plan, check_spoken, estimate_s, plan_book

CAST = {NARRATOR: Part(), "anna": Part("bright"), "tom": Part("robot")}
HEADING, PARAGRAPH, SCENE = BlockKind.HEADING, BlockKind.PARAGRAPH, BlockKind.SCENE_BREAK


def book_of(*blocks: str | Block, language: str | None = None) -> Book:
    made = tuple(one if isinstance(one, Block) else Block(PARAGRAPH, one) for one in blocks)
    return Book("", "", language, (Chapter("", made),))


def told(plan: Plan) -> list[tuple[str, str]]:
    return [(one.role, one.text) for one in plan.segments]


def heard(plan: Plan) -> dict[int, list[tuple[int, int]]]:
    return {at: [(one.start, one.end) for one in plan.of(at)] for at in range(len(plan.texts))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("book") / "book.epub"
    make_book(path, chars=40_000, chapters=4)
    return plan_book(open_book(path), CAST)


def test_each_character_of_a_whole_book_is_in_one_segment(made: Plan) -> None:
    check = check_spoken(made, heard(made))
    assert check.whole
    assert check.spoken == sum(not char.isspace() for text in made.texts for char in text)
    assert set(check.not_read) >= {"footnote"}
    assert [one.index for one in made.segments] == list(range(len(made.segments)))
    assert all(made.texts[one.chapter][one.start : one.end] == one.text for one in made.segments)


def test_segments_hold_whole_sentences_up_to_the_bound(made: Plan) -> None:
    assert max(len(one.text) for one in made.segments) <= MAX_CHARS
    paragraphs = [one for one in made.segments if one.pause_after_s != Pauses().sentence_s]
    assert len(paragraphs) < len(made.segments)  # some paragraphs are longer than a segment
    assert all(one.opens and one.closes for one in made.segments)


def test_a_sentence_that_is_too_long_is_cut_without_a_pause() -> None:
    plan = plan_book(book_of("we went on and on, " * 60 + "until the end. Then we slept."), CAST)
    first, *_, last = plan.segments
    assert (first.closes, first.pause_after_s) == (False, 0.0)
    assert last.text.endswith("Then we slept.")
    assert check_spoken(plan, heard(plan)).whole


def test_a_paragraph_longer_than_a_request_is_planned() -> None:
    plan = plan_book(book_of("The sea was calm that day. " * 2_000), CAST)
    assert check_spoken(plan, heard(plan)).whole


def test_pauses_follow_from_the_blocks() -> None:
    blocks = (Block(HEADING, "One"), "First.", "Second.", Block(SCENE), "Third. " + "And so it went on for long. " * 20)
    plan = plan_book(book_of(*blocks, Block(HEADING, "Two"), "Fourth."), CAST, Pauses(0.1, 0.2, 0.3, 0.4))
    assert [one.pause_after_s for one in plan.segments] == [0.3, 0.2, 0.4, 0.1, 0.3, 0.3, 0.3]


@pytest.mark.parametrize("seconds", [-1, 61, float("nan")])
def test_pauses_beyond_reason_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="pause-scene"):
        Pauses(scene_s=seconds)


def test_lines_of_a_play_are_spoken_by_their_names() -> None:
    plan = plan_book(book_of("They met.\nAnna: Is it cold?\nTOM : It is.\nShe left.", "Note: it rained."), CAST)
    assert told(plan) == [
        (NARRATOR, "They met."),
        ("anna", "Is it cold?"),
        ("tom", "It is."),
        (NARRATOR, "She left."),
        (NARRATOR, "Note: it rained."),
    ]
    assert [span.reason for span in plan.left_out[0]] == ["label", "label"]
    assert check_spoken(plan, heard(plan)).whole


def test_a_tag_holds_up_to_the_next_one_or_a_heading() -> None:
    blocks = ("He said [voice:tom] good day [/voice] and left.", "[voice:anna] Bye.", "I wait.", Block(HEADING, "Two"))
    plan = plan_book(book_of(*blocks), CAST)
    assert told(plan) == [
        (NARRATOR, "He said"),
        ("tom", "good day"),
        (NARRATOR, "and left."),
        ("anna", "Bye."),
        ("anna", "I wait."),
        (NARRATOR, "Two"),
    ]
    assert [one.pause_after_s for one in plan.segments[:2]] == [0.0, 0.0]
    assert [one.opens for one in plan.segments[:3]] == [True, False, False]
    assert check_spoken(plan, heard(plan)).whole


def test_a_tag_for_nobody_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"\[voice:bob\] is not in the cast \(narrator, anna, tom\)"):
        plan_book(book_of("[voice:bob] Hello."), CAST)


def test_text_without_words_is_left_out_by_name() -> None:
    plan = plan_book(book_of("— … —", "“Hello there, you all,” [voice:tom] ” [/voice] she said."), CAST)
    assert [one.text for one in plan.segments] == ["“Hello there, you all,”", "she said."]
    assert sorted(span.reason for span in plan.left_out[0]) == ["no words", "no words", "voice tag", "voice tag"]
    assert check_spoken(plan, heard(plan)).whole


def test_the_language_of_a_block_goes_before_that_of_the_book() -> None:
    plan = plan_book(book_of("One day.", Block(PARAGRAPH, "Ein Tag.", "de"), language="en"), CAST)
    assert [one.language for one in plan.segments] == ["en", "de"]


def test_the_check_finds_what_is_lost_and_what_is_doubled() -> None:
    plan = plan_book(book_of("One day.", "Two days."), CAST)
    book = replace(plan.book, chapters=(replace(plan.book.chapters[0], left_out=(LeftOut("", "a b", "table"),)),))
    plan = replace(plan, book=book)
    assert check_spoken(plan, {0: [(0, 8), (10, 14)]}) == Check(10, 0, 5, 0, {"table": 2})
    assert check_spoken(plan, {0: [(0, 8), (0, 3), (10, 19)]}) == Check(12, 0, 0, 3, {"table": 2})


def test_the_estimate_counts_syllables_of_chinese() -> None:
    assert estimate_s("abc") * 3 < estimate_s("你好吗")
