"""Where the voice is in its text: the path through the attention, and what the listener is told of it."""

from __future__ import annotations

import numpy as np
import pytest

from vivavoce.engine.text_cursor import TextCursor


def attention(path: list[int], text: int, sure: float = 0.8) -> np.ndarray:
    rows = np.full((len(path), text), (1 - sure) / (text - 1), np.float32)
    rows[range(len(path)), path] = sure
    return rows


def followed(path: list[int], text: int, sure: float = 0.8) -> TextCursor:
    cursor = TextCursor()
    cursor.add(len(path), attention(path, text, sure))
    return cursor


def test_the_path_is_that_of_the_attention():
    path = [0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 8, 9, 9]
    cursor = followed(path, 10)
    assert cursor.positions().tolist() == path
    assert cursor.reached() == [(0, 0), (1, 3), (2, 5), (4, 6), (5, 8), (7, 9), (8, 11), (9, 12)]


def test_one_wrong_row_does_not_move_it():
    path = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    wrong = [*path[:4], 9, *path[5:]]
    assert np.abs(followed(wrong, 10, sure=0.6).positions() - path).max() <= 1


def test_it_jumps_where_words_are_skipped():
    path = [0, 1, 1, 2, 2, 18, 18, 19, 19, 19]
    assert followed(path, 20).positions().tolist() == path


def test_pieces_equal_the_whole_and_a_cut_forgets():
    path = [0, 0, 1, 2, 2, 3, 3, 4, 4]
    whole, pieces, rows = followed(path, 5), TextCursor(), attention(path, 5)
    for begin in range(0, len(path), 2):
        pieces.add(len(rows[begin : begin + 2]), rows[begin : begin + 2])
    assert pieces.positions().tolist() == whole.positions().tolist() == path
    pieces = pieces.kept(4)
    assert pieces.positions().tolist() == path[:4]
    assert len(pieces) == 4


def test_a_text_that_grows_and_a_window_of_it():
    cursor = TextCursor()
    cursor.add(1)  # the first token of a prefill has no attention
    cursor.add(3, attention([0, 1, 2], 3))
    cursor.add(3, attention([2, 3, 4], 5), first=1)  # text tokens 3 to 5 in a text of 6
    assert cursor.positions().tolist() == [0, 0, 1, 2, 3, 4, 5]


def test_attention_adds_up_to_the_speech_tokens():
    cursor = followed([0, 0, 1, 2], 4)
    total = cursor.attended(4)
    assert total.sum() == pytest.approx(4.0)
    assert total.argmax() == 0
    assert total[3] < 0.5
