"""WordNet's texts and the mix: deterministic, wide, and never a test sentence."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from training.data.texts import grammar
from training.data.texts.coverage import FRAMES, Coverage
from training.data.texts.mix import held_out, training_texts
from training.data.texts.sentence import MAX_WORDS, is_reserved, words
from training.data.texts.wordnet import WordNet
from vivavoce.errors import MissingDependency

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by  \n"


def synset(lemmas: str, gloss: str) -> str:
    """A line of a data file; `lemmas` is the field that counts and lists the words."""
    return f"00001740 03 n {lemmas} 001 ~ 00001930 n 0000 | {gloss}  \n"


NOUNS = [
    synset("02 dog 0 domestic_dog 0", 'a member of the genus; has been kept by man; "the dog barked all night"'),
    synset("01 Canis 0", 'type genus of the dog family; "Canis is a name"'),
    synset("01 Vienna 0", "the capital of a country (on the Danube), Vienna in short"),
    synset("01 zyzzyva 0", "a weevil that eats plants"),
    synset("01 word 0", "(vulgar slang) a word that is not said"),
]
VERBS = [
    synset(
        "02 bark 0 kept 0",
        'make the sound of a dog; "the DOG barked all night!"; "the dog barked all night!"; "they barked in the Park"',
    )
]
ADJECTIVES = [synset("01 short(p) 0", "of little length; a short dog"), synset("01 little 0", "not big at all")]
ADVERBS = [synset("01 all 0", 'to a complete degree; "he did it all `alone\'"')]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, lines in (("noun", NOUNS), ("verb", VERBS), ("adj", ADJECTIVES), ("adv", ADVERBS)):
        (tmp_path / f"data.{part}").write_text(LICENCE + "".join(lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def wordnet() -> WordNet:
    """A made-up WordNet, large enough to draw from."""
    r = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    made_up = ["".join(r.choices(syllables, k=3)) for _ in range(400)]
    sentences = [" ".join(r.sample(made_up, 6)).capitalize() + "." for _ in range(6000)]
    kinds = ("noun", "verb", "adj", "adv", "name")
    return WordNet(tuple(sentences[:3000]), tuple(sentences[3000:]), {kind: tuple(made_up[:80]) for kind in kinds})


def test_reading_wordnet(folder: Path) -> None:
    read = WordNet.read(folder)
    assert read.examples == ("The dog barked all night.", "Canis is a name.", "They barked in the Park.")
    assert read.glosses == (
        "A member of the genus.",
        "Has been kept by man.",
        "Type genus of the dog family.",
        "The capital of a country, Vienna in short.",
        "A weevil that eats plants.",
        "Make the sound of a dog.",
        "Of little length.",
        "A short dog.",
        "Not big at all.",
        "To a complete degree.",
    )
    assert read.lemmas == {
        "noun": ("dog",),
        "verb": ("kept",),
        "adj": ("little",),
        "adv": ("all",),
        "name": ("Vienna",),
    }


def test_the_folder_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_WORDNET", str(folder))
    assert WordNet.read() == WordNet.read(folder)


def test_a_missing_wordnet(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"data\.noun cannot be read .*apt-get install wordnet-base"):
        WordNet.read(tmp_path)


def test_training_texts_are_deterministic(wordnet: WordNet) -> None:
    first = list(islice(training_texts(wordnet, 1), 500))
    assert first == list(islice(training_texts(wordnet, 1), 500))
    assert first != list(islice(training_texts(wordnet, 2), 500))


def test_no_training_text_is_a_test_sentence(wordnet: WordNet) -> None:
    texts = list(islice(training_texts(wordnet, 1), 20_000))
    assert not any(is_reserved(text) for text in texts)
    tests = held_out(wordnet, 40, 3)
    joined = "\n".join(texts).lower()
    assert not any(sentence.lower() in joined for sentence in tests)
    assert any(is_reserved(sentence) for sentence in wordnet.examples)  # so leaving them out does something


def test_lengths_of_training_texts(wordnet: WordNet) -> None:
    texts = list(islice(training_texts(wordnet, 1), 5000))
    lengths = [len(words(text)) for text in texts]
    assert min(lengths) == 1
    assert max(lengths) <= MAX_WORDS
    assert 6 < sum(lengths) / len(lengths) < 10
    assert sum(text.count(". ") > 0 for text in texts) > 300  # two sentences


def test_examples_come_again_only_after_all_have_come(wordnet: WordNet) -> None:
    spoken = Counter(text for text in islice(training_texts(wordnet, 1), 8000) if text in set(wordnet.examples))
    assert max(spoken.values()) == 1


def test_held_out_sentences(wordnet: WordNet) -> None:
    sentences = held_out(wordnet, 40, 3)
    assert sentences == held_out(wordnet, 40, 3)
    assert len(set(sentences)) == 40
    assert all(is_reserved(sentence) for sentence in sentences)
    assert all(5 <= len(words(sentence)) <= 12 for sentence in sentences)
    assert set(sentences[::2]) <= set(wordnet.examples)
    assert not set(sentences[1::2]) & set(wordnet.examples)


def test_held_out_sentences_of_known_words(wordnet: WordNet) -> None:
    r = random.Random(0)
    said = (*wordnet.examples, *(grammar.sentence(r) for _ in range(3000)))
    known = {word for text in said for word in words(text)} - {"the"}
    assert any("the" in words(sentence) for sentence in held_out(wordnet, 40, 3))
    sentences = held_out(wordnet, 40, 3, known)
    assert all(word in known for sentence in sentences for word in words(sentence))


def test_too_few_examples(wordnet: WordNet) -> None:
    with pytest.raises(ValueError, match="count: 2000 test sentences need 1000 examples, there are"):
        held_out(wordnet, 2000, 3)


def test_coverage_speaks_every_word(wordnet: WordNet) -> None:
    lemmas = {kind: tuple(f"{kind}{word}" for word in kinds) for kind, kinds in wordnet.lemmas.items()}
    coverage = Coverage(lemmas, random.Random(1))
    spoken = {word for _ in range(1500) for word in words(coverage.sentence())}
    for kind, kinds in lemmas.items():
        assert set(kinds) <= spoken, kind


def test_frames_name_known_kinds() -> None:
    lemmas = {kind: (kind,) for kind in ("noun", "verb", "adj", "adv", "name")}
    coverage = Coverage(lemmas, random.Random(1))
    texts = [coverage.sentence() for _ in range(50 * len(FRAMES))]
    assert not any("{" in text for text in texts)
    assert len(set(texts)) == len(FRAMES)
