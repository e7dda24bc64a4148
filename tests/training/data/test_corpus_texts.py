"""The texts of the corpus: sentences, the grammar, WordNet and the mix; deterministic, wide, never a test sentence."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import MissingDependency
from vivavoce_training.data.texts import grammar
from vivavoce_training.data.texts.grammar import (
    TEMPLATES,
    article,
    cardinal,
    fill,
    ordinal,
    plural,
    random_time,
    sentence,
    year,
)
from vivavoce_training.data.texts.lexicon import FIXED
from vivavoce_training.data.texts.mix import FRAMES, MOST_WORDS, Coverage, held_out, training_texts
from vivavoce_training.data.texts.sentence import MAX_WORDS, MIN_WORDS, clean, is_reserved, is_suitable, words
from vivavoce_training.data.texts.wordnet import WordNet

HELD_OUT = Path(__file__).parents[3] / "benchmarks" / "sentences" / "held_out.txt"


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ("the old man smiled", "The old man smiled."),
        ("  he left --  quickly ; ", "He left, quickly."),
        ("what is it?", "What is it?"),
        ("the cats' tails are long", "The cats' tails are long."),
        ("it`s a well-known fact", "It's a well-known fact."),
    ],
)
def test_cleaned(raw: str, sentence: str) -> None:
    assert clean(raw) == sentence


@pytest.mark.parametrize(
    "raw",
    [
        "too short",
        " ".join(["long"] * (MAX_WORDS + 1)),
        "it costs 5 dollars",
        "a caf\u00e9 in town",
        "the U.S. economy grew",
        "made by NASA long ago",
        "he met Dr. Brown there",
        "they call it 'light cream' here",
        "tools, nails, etc. were there",
        "a value of x and y",
        "what the hell is this",
        "",
        "...",
    ],
)
def test_refused(raw: str) -> None:
    assert clean(raw) is None


@given(st.text(alphabet=st.characters(max_codepoint=0x2100), max_size=80))
def test_what_is_cleaned_is_clean(raw: str) -> None:
    sentence = clean(raw)
    if sentence is not None:
        assert re.fullmatch(r"[A-Z'][A-Za-z' ,.?!;:-]*[.?!]", sentence)
        assert MIN_WORDS <= len(words(sentence)) <= MAX_WORDS
        assert is_suitable(sentence)
        assert clean(sentence) == sentence


def test_one_in_a_hundred_is_reserved_whatever_its_case() -> None:
    sentences = [f"This is sentence {number}." for number in range(5000)]
    reserved = [sentence for sentence in sentences if is_reserved(sentence)]
    assert 25 < len(reserved) < 75
    assert all(is_reserved(sentence.upper()) for sentence in reserved)
    one = "the body lay in a pool of blood."
    assert int(hashlib.md5(one.encode()).hexdigest(), 16) % 100 == 7
    assert is_reserved(one.capitalize())


def test_the_published_test_sentences_are_reserved() -> None:
    sentences = HELD_OUT.read_text(encoding="utf-8").splitlines()
    assert len(set(sentences)) == len(sentences) == 200
    assert all(is_reserved(sentence) for sentence in sentences)
    assert all(5 <= len(words(sentence)) <= 12 for sentence in sentences)
    assert not any(character.isdigit() for sentence in sentences for character in sentence)


KNOWN = frozenset((Path(__file__).parent / "known_words.txt").read_text(encoding="utf-8").split())
"""Words of the grammar that stand in the CMU pronouncing dictionary."""
WELL_FORMED = re.compile(r"[A-Z][A-Za-z' ,.?!:-]*[.?!]")


def test_every_template_speaks() -> None:
    for template in TEMPLATES:
        r = random.Random(template)
        for _ in range(20):
            filled = fill(template, r)
            assert WELL_FORMED.fullmatch(filled), filled
            assert "  " not in filled
            assert is_suitable(filled), filled


def test_all_words_are_known() -> None:
    r = random.Random(1)
    spoken = {word for text in (*FIXED, *(sentence(r) for _ in range(20_000))) for word in words(text)}
    assert {word for word in spoken if word.removesuffix("'s") not in KNOWN and word not in KNOWN} == set()


def test_fixed_utterances_are_well_formed() -> None:
    assert len(set(FIXED)) == len(FIXED)
    assert all(WELL_FORMED.fullmatch(text) for text in FIXED)
    assert {len(words(text)) for text in FIXED} >= {1, 2, 3, 4, 5, 9}


def test_sentences_are_deterministic_and_varied() -> None:
    first = [sentence(random.Random(5)) for _ in range(3)]
    assert first[0] == first[1] == first[2]
    r = random.Random(5)
    assert len({sentence(r) for _ in range(2000)}) > 1800


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (42, "forty two"),
        (100, "one hundred"),
        (514, "five hundred and fourteen"),
        (2_000, "two thousand"),
        (8_228, "eight thousand two hundred and twenty eight"),
        (1_000_001, "one million one"),
    ],
)
def test_cardinal(number: int, spoken: str) -> None:
    assert cardinal(number) == spoken


def test_other_numbers() -> None:
    assert cardinal(328, conjunction=False, hyphen=True) == "three hundred twenty-eight"
    assert [ordinal(number) for number in (1, 8, 12, 14, 20, 22, 31)] == (
        ["first", "eighth", "twelfth", "fourteenth", "twentieth", "twenty second", "thirty first"]
    )
    assert [year(number) for number in (1984, 1900, 1907, 2000, 2005, 2024)] == [
        "nineteen eighty four",
        "nineteen hundred",
        "nineteen oh seven",
        "two thousand",
        "two thousand five",
        "twenty twenty four",
    ]
    r = random.Random(0)
    assert all(re.fullmatch(r"[a-zA-Z' ]+", random_time(r)) for _ in range(500))


def test_articles_and_plurals() -> None:
    assert [article(word) for word in ("apple", "university", "hour", "useful tool", "old car", "umbrella")] == (
        ["an apple", "a university", "an hour", "a useful tool", "an old car", "an umbrella"]
    )
    assert [plural(word) for word in ("box", "key", "story", "leaf", "knife", "watch", "potato", "woman", "roof")] == (
        ["boxes", "keys", "stories", "leaves", "knives", "watches", "potatoes", "women", "roofs"]
    )


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
    assert max(lengths) <= MOST_WORDS
    assert 12 < sum(lengths) / len(lengths) < 22
    assert sum(text.count(". ") > 0 for text in texts) > 1500  # several sentences


def test_examples_come_again_only_after_all_have_come(wordnet: WordNet) -> None:
    spoken = Counter(text for text in islice(training_texts(wordnet, 1), 2500) if text in set(wordnet.examples))
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
