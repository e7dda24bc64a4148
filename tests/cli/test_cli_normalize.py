from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_a_text_is_read_by_either_rules(run: Run) -> None:
    assert run("normalize", "It costs $3.50.").text == "It costs three dollars and fifty cents.\n"
    official = run("normalize", "It costs $3.50.", "--reading", "official", "--explain")
    assert official.text.splitlines()[0] == "It costs three point five dollars."
    change = official.text.splitlines()[2].split()
    assert (change[0], change[-1]) == ("0–15", "official")


def test_a_model_is_read_to_in_what_it_knows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIVAVOCE_MODEL")
    text = "Das kostet 5 Euro, und das ist nicht viel."
    assert run("normalize", text).text == "Das kostet fünf Euro, und das ist nicht viel.\n"
    assert run("normalize", text, "--model", "mini").text == "Das kostet five Euro, und das ist nicht viel.\n"
    assert run("normalize", "3个").text == "三个\n"
    assert "the model does not know the letters" in run("normalize", "3个", "--model", "mini").err
    assert run("normalize", "$50蚊", "--language", "yue").text == "五十蚊\n"


def test_changes_are_shown_with_their_places_and_rules(run: Run) -> None:
    result = run("normalize", "A **5** km run 😀", "--explain", "--emojis", "named")
    lines = result.text.splitlines()
    assert lines[0] == "A five kilometer run grinning face"
    assert lines[1].split() == ["characters", "written", "spoken", "rule"]
    assert [line.split()[0] for line in lines[2:]] == ["2–4", "4–10", "14–16"]


def test_marks_of_the_model_pass_and_control_characters_are_left_out(run: Run) -> None:
    assert run("normalize", "[sigh] 3").text == "[sigh] three\n"
    assert run("normalize", "a\x07b <think>Hm.</think>").text == "ab\n"
    assert run("normalize", "<think>Hm.</think> Yes.", "--reasoning", "read").text == "Hm. Yes.\n"


def test_a_lexicon_respells_words(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "words.tsv"
    file.write_text("# names\nNguyen\twin\n", encoding="utf-8")
    said = run("normalize", "Dr. Nguyen", "--lexicon", file)
    assert said.text == "Doctor win\n"
    file.write_text("Nguyen", encoding="utf-8")
    broken = run("normalize", "Hi.", "--lexicon", file)
    assert (broken.code, "line 1 of" in broken.err) == (2, True)
    assert "cannot be read" in run("normalize", "Hi.", "--lexicon", tmp_path / "none").err


def test_what_cannot_be_chosen_is_one_line(run: Run) -> None:
    assert run("normalize", "Hi.", "--reading", "poetic").err.startswith(
        "error: reading: 'poetic' is not one of official,"
    )
    assert run("speak", "Hi.", "--emojis", "loud").err.startswith("error: emojis: 'loud' is not one of silent, named;")
    assert run("normalize", "Hi.", "--code", "run").err.startswith("error: code: 'run' is not one of read, silent;")
    unknown = run("normalize", "Hi.", "--language", "tlh")
    assert unknown.err.startswith("error: language: 'tlh' is not one of zh, en,")
