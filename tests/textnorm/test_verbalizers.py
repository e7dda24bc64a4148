"""What the languages say: numerals in their forms, and any mixture of their texts."""

from __future__ import annotations

import random

import pytest

from tests.textnorm.acceptable import failing, load_cases
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.rules import table_rules
from vivavoce_textnorm.russian import Russian
from vivavoce_textnorm.verbalizer import VERBALIZERS, load_verbalizer

LANGUAGES = ("de", "es", "fr", "it", "ru", "ja", "ko", "yue")
CARDINALS = {
    "de": """0 null; 1 eins; 16 sechzehn; 21 einundzwanzig; 101 hunderteins; 1100 tausendhundert;
        21000 einundzwanzigtausend; 1000001 eine Million eins; 2000000 zwei Millionen; 1000000000 eine Milliarde""",
    "es": """0 cero; 21 veintiuno; 100 cien; 101 ciento uno; 1000 mil; 21000 veintiún mil; 31000 treinta y un mil;
        100000 cien mil; 555555 quinientos cincuenta y cinco mil quinientos cincuenta y cinco;
        1000000 un millón; 1000000000 mil millones; 21000000 veintiún millones; 1000000000000 un billón""",
    "fr": """0 zéro; 21 vingt et un; 71 soixante et onze; 80 quatre-vingts; 81 quatre-vingt-un; 91 quatre-vingt-onze;
        200 deux cents;
        201 deux cent un; 1000 mille; 80000 quatre-vingt mille; 200000 deux cent mille; 2000000 deux millions;
        200000000 deux cents millions; 1001000 un million mille""",
    "it": """0 zero; 3 tre; 21 ventuno; 23 ventitré; 28 ventotto;
        101 centouno; 1000 mille; 2000 duemila; 21000 ventunomila;
        1000000 un milione; 3000003 tre milioni tre""",
    "ru": """0 ноль; 40 сорок; 1000 тысяча; 2001 две тысячи один; 21000 двадцать одна тысяча; 2000000 два миллиона;
        5000000 пять миллионов""",
    "ja": """0 ゼロ; 10 十; 1500 千五百; 10000 一万; 11000 一万千; 300000000 三億""",
    "ko": """0 영; 10 십; 10000 만; 11111 만 천백십일; 20000 이만; 100000000 일억""",
    "yue": """0 零; 2 二; 10 十; 1050 一千零五十; 20000 兩萬""",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_cardinals(language: str) -> None:
    voice = load_verbalizer(language)
    assert voice
    for row in CARDINALS[language].split(";"):
        value, said = row.split(maxsplit=1)
        assert voice.cardinal(int(value)) == said.strip()
    assert voice.cardinal(10**35)  # the largest that is said as a number


@pytest.mark.parametrize(
    ("language", "value", "said"),
    [
        ("de", 3, "dritte"),
        ("de", 21, "einundzwanzigste"),
        ("es", 3, "tercero"),
        ("fr", 80, "quatre-vingtième"),
        ("fr", 9, "neuvième"),
        ("fr", 21, "vingt et unième"),
        ("it", 23, "ventitreesimo"),
        ("it", 21, "ventunesimo"),
        ("it", 1000, "millesimo"),
        ("ko", 1, "첫 번째"),
    ],
)
def test_ordinals(language: str, value: int, said: str) -> None:
    voice = load_verbalizer(language)
    assert voice
    assert voice.ordinal(value) == said


@pytest.mark.parametrize(
    ("value", "case", "gender", "number", "place"),
    [
        (1, "g", "f", "одной", "первой"),
        (2, "i", "m", "двумя", "вторым"),
        (3, "n", "f", "три", "третья"),
        (40, "p", "m", "сорока", "сороковом"),
        (58, "i", "m", "пятьюдесятью восемью", "пятьдесят восьмым"),
        (300, "d", "m", "трёмстам", "трёхсотому"),
        (1999, "p", "m", "тысяче девятистах девяноста девяти", "тысяча девятьсот девяносто девятом"),
        (2000, "g", "m", "двух тысяч", "двухтысячного"),
        (5000, "n", "m", "пять тысяч", "пятитысячный"),
    ],
)
def test_russian_cases(value: int, case: str, gender: str, number: str, place: str) -> None:
    russian = load_verbalizer("ru")
    assert isinstance(russian, Russian)
    assert russian.say(value, case, gender) == number
    assert russian.rank(value, case, gender) == place


def test_a_numeral_behind_a_name_is_read_in_every_language() -> None:
    assert read("Это Вася XIV и он тут.", "ru").spoken == "Это Вася четырнадцатый и он тут."
    for language in LANGUAGES:
        assert "XIV" not in read("Abba XIV.", language).spoken


def test_the_language_of_a_request_outweighs_a_word_of_its_sisters() -> None:
    assert read("Il 33% e le 23 ragazze.", "it").spoken == "Il trentatré per cento e le ventitré ragazze."


@pytest.mark.parametrize(("language", "least"), [("de", 0.9), ("es", 0.88), ("fr", 0.9), ("it", 0.8), ("ru", 0.95)])
def test_most_texts_are_read_in_their_language_where_none_is_named(language: str, least: float) -> None:
    """What is left has no word that one language alone writes."""
    cases = load_cases(language)
    wrong = failing(cases, language, lambda text: read(text).spoken)
    assert len(wrong) <= (1 - least) * len(cases)


@pytest.mark.parametrize("language", [None, "en"])
@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Size 12, i.e. large.", "Size twelve, that is large."),
        ("Le Mans 1966, 24 hours.", "Le Mans nineteen sixty six, twenty four hours."),
        ("La Paz is 24 miles away.", "La Paz is twenty four miles away."),
        ("Sat 10am-2pm.", "Saturday ten AM to two PM."),
        ("Tengo 16 gatos.", "Tengo dieciséis gatos."),
        ("Il y a 80 personnes.", "Il y a quatre-vingts personnes."),
        ("Ich habe 16 Katzen.", "Ich habe sechzehn Katzen."),
        ("Ho 16 gatti.", "Ho sedici gatti."),
    ],
)
def test_a_short_text_is_read_in_its_own_language(text: str, spoken: str, language: str | None) -> None:
    assert read(text, language).spoken == spoken


@pytest.mark.parametrize("language", VERBALIZERS)
def test_what_a_table_calls_is_there(language: str) -> None:
    voice = load_verbalizer(language)
    assert voice
    called = [rule.said[1:] for rule in table_rules(voice.locale) if rule.said.startswith("@")]
    assert [name for name in called if not hasattr(voice, f"_{name}")] == []


def test_any_mixture_is_covered_by_its_pieces_and_read_as_it_is_when_read_again() -> None:
    chance = random.Random(7)
    texts = {language: [case.text for case in load_cases(language)] for language in LANGUAGES}
    for place in range(400):
        language = LANGUAGES[place % len(LANGUAGES)]
        other = chance.choice((language, chance.choice(LANGUAGES)))
        text = f"{chance.choice(texts[language])} {chance.choice(texts[other])}"[chance.randrange(20) :]
        reading = read(text, language)
        ends = [0, *(piece.end for piece in reading.pieces)]
        assert [piece.start for piece in reading.pieces] == ends[:-1]
        assert ends[-1] == len(text)
        assert read(reading.spoken, language).spoken == reading.spoken
