"""Nine languages: each is told from its text, and all but English and Chinese are spoken as they are written."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from vivavoce.errors import InvalidRequest, InvalidText
from vivavoce.frontend.text.segmentation import split_paragraph
from vivavoce.frontend.text.sentence_stream import sentence_stream
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_textnorm import detect_language
from vivavoce_textnorm.normalizer import whole_words

SENTENCES = {
    "ja": [
        "今日は2024年3月5日、火曜日です。",
        "「価格は1,500円、つまり約10.5ドルです。」と彼は言いました。",
        "東京都港区六本木1丁目2番3号へ、午後3時30分に来てください！",
        "本当ですか？",
        "『The Lord of the Rings』を3回見ました……とても面白かった。",
        "スーパーで2kgの米を買った。",
    ],
    "ko": [
        "안녕하세요, 제 이름은 김민수이고 25살입니다.",
        "회의는 2024년 3월 5일 오후 3시 30분에 시작합니다.",
        "“가격은 1,500원입니다.”라고 그가 말했습니다.",
        "정말요?!",
        "삼성 Galaxy S24는 약 115.5만 원이에요.",
        "서울(서울특별시)의 인구는 940만 명입니다.",
    ],
    "de": [
        "Am 3. Oktober 2024 trafen wir uns um 8:30 Uhr, z. B. mit Dr. Müller, in der Hauptstr. 21.",
        "„Das kostet doch nur 3,50 €!“ rief sie.",
        "Die Nr. 5 lebt, d. h. sie ist am 1. und 2. Mai wieder da, bzw. im Juni.",
        "»Komm sofort her!«, sagte der Vater.",
        "Es sind ca. 1.234.567 Einwohner, also 12,5 % mehr als 1999.",
        "Und dann?",
    ],
    "es": [
        "¿Cuántos años tienes tú?",
        "El Sr. García y la Sra. López viven en la calle Mayor, n.º 5, desde el 3 de marzo de 2024.",
        "¡Qué bien, cuesta solo 3,50 €!",
        "EE. UU. tiene 330 millones de habitantes, p. ej., en la «Gran Manzana» hay 8,5.",
        "La reunión es el 15/03/2025 a las 14:30 h, en la pág. 12 del libro.",
    ],
    "fr": [
        "Le train part à 8 h 30 et coûte 1\u202f234,50 €.",
        "« Bonjour\u00a0! » dit-il à M. Dupont et à Mme Martin.",
        "Il est né le 1er mars 1998, c'est-à-dire il y a 26 ans.",
        "Qu'est-ce que c'est ?",
        "L'article 5 de la loi n° 78-17 s'applique aujourd'hui à 67,5 millions de personnes.",
    ],
    "it": [
        "Il treno parte alle 8:45 e costa 21,50 €.",
        "Il Sig. Bianchi e la dott. Rossi sono arrivati il 3 marzo 2024.",
        "«Perché non vieni?» disse lei.",
        "Nell'anno 1861 l'Italia aveva 22 milioni di abitanti, cioè il 37% di oggi.",
        "È vero che ci sono 3 kg di pane, 2 l d'acqua, ecc.?",
    ],
    "ru": [
        "Привет, мне 25 лет, а моему брату 31.",
        "В 2024 г. мы жили на ул. Ленина, д. 5, кв. 21.",
        "«Это стоит 1\u00a0234,50 руб.», — сказал А. С. Петров.",
        "Встреча 15.03.2025 в 14:30, т. е. через 3 дня!",
        "Население составляет 146,5 млн человек, или 1,8 % населения мира.",
    ],
}
ENGLISH = [
    "The Korean word 김치 means kimchi, and it costs $5 in the shop.",
    'He said "Ich bin ein Berliner" on June 26, 1963.',
    "El Niño and La Niña are de facto linked.",
    "Crème brûlée costs $5.",
    "Los Angeles, Las Vegas: 40% off",
    "Les Misérables, 2 tickets",
    "The word мир means 3 things.",
    "À la carte: 3 entrées, 1 café",
    "room 21, [un][à] <|le|>",
    "MIT, EST, LE, UN 2028",
]
ITALIAN = ["Il piano è 3°.", "Il costo è 1,5 mln. 3° piano, 2a classe.", "Il prezzo è 5 euro."]
CHINESE = [
    "他说“ありがとう”，然后花了3元离开了商店。",
    "他去了首尔(서울)3次。",
    "东京の3个地方",
    "優の良品3折",
    "這是繁體字，價格是100元。",
]


def joined(language, times=1):
    """All sentences of a language, and the places between two of them."""
    blank = "" if language == "ja" else " "
    sentences = SENTENCES[language] * times
    ends = list(accumulate(len(sentence + blank) for sentence in sentences))
    return blank.join(sentences), {0, *ends[:-1], ends[-1] - len(blank)}


def dense(text):
    return "".join(text.split())


@pytest.mark.parametrize("language", SENTENCES)
def test_each_language_is_told_from_its_text(language):
    assert detect_language(joined(language)[0]) == language
    assert [detect_language(text) for text in ENGLISH] == ["en"] * len(ENGLISH)
    assert [detect_language(text) for text in ITALIAN] == ["it"] * len(ITALIAN)
    assert [detect_language(text) for text in CHINESE] == ["zh"] * len(CHINESE)


def test_a_text_that_shows_no_language_is_in_that_of_the_text_before():
    assert detect_language("Zimmer 21, bitte.") == "en"
    assert detect_language("Zimmer 21, bitte.", "de") == "de"
    assert detect_language("東京都港区1丁目", "ja") == "ja"
    assert detect_language("东京港区的3个人，你说。", "ja") == "zh"
    assert detect_language("And then there were 21 of them.", "de") == "en"
    assert detect_language("x &le; y &ne; z") == "en"
    assert detect_language("Zimmer 21, bitte.", "zh") == detect_language("Zimmer 21, bitte.", "en") == "en"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("language", SENTENCES)
def test_every_word_and_digit_is_spoken_and_no_sentence_is_torn(language, named, front_end):
    for times in (1, 6):
        text, between = joined(language, times)
        parts = list(front_end.located(text, language if named else None))
        assert len(parts) >= times
        assert dense("".join(one.spoken for one in parts)) == dense(text)
        assert parts[0].start == 0
        for one in parts:
            assert dense(text[one.start : one.end]) == dense(one.spoken)
            assert one.end in between
        assert [one.start for one in parts[1:]] == [one.end for one in parts[:-1]]


@pytest.mark.parametrize("language", SENTENCES)
def test_one_sentence_alone_is_spoken_as_it_is_written(language, front_end):
    for sentence in SENTENCES[language]:
        assert front_end.segments(sentence, language) == [" ".join(sentence.split())]
        assert (
            front_end.normalize(f" {sentence}\n") == " ".join(sentence.split()) or detect_language(sentence) != language
        )


@pytest.mark.parametrize("language", SENTENCES)
def test_text_that_arrives_keeps_its_language_and_its_sentences(language):
    text, between = joined(language)
    sentences = list(sentence_stream(text))
    assert list(sentence_stream([text])) == sentences
    assert all(text[one.start : one.end] == one.text for one in sentences)
    assert dense("".join(one.text for one in sentences)) == dense(text)
    assert {one.language for one in sentences} == {language}
    # Only the first sentence may be cut at a clause.
    ends = {place for place in between if place} | {place - 1 for place in between if place and language != "ja"}
    assert all(one.end in ends for one in sentences[1:])


@pytest.mark.parametrize(
    ("text", "language", "segments"),
    [
        ("Ich habe 21 Äpfel und das ist gut", None, ["Ich habe 21 Äpfel und das ist gut."]),
        ("Ich habe 21 Äpfel und das ist gut", "en", ["Ich habe twenty one Äpfel und das ist gut."]),
        ("room 21", "fr", ["room 21."]),
        ("彼は3時に来る", None, ["彼は3時に来る。"]),
        ("彼は3時に来る", "zh", ["彼は三時に来る。"]),
        ("Das ist  für\n\ndich: Donau\u00addampf\u200bschiff 3", None, ["Das ist für dich: Donaudampfschiff 3."]),
        ("그는 3 & 4 = 7 이라고", None, ["그는 3 & 4 = 7 이라고."]),
        ("Что? 5 % — «да»", None, ["Что? 5 % — «да»."]),
    ],
)
def test_only_english_and_chinese_are_read(text, language, segments, front_end):
    assert front_end.segments(text, language) == segments


@pytest.mark.parametrize(
    ("text", "language", "sentences"),
    [
        ("Es war am 3. Oktober. Es war 1999. Gut.", "de", ["Es war am 3. Oktober.", " Es war 1999.", " Gut."]),
        ("Es kostet 3,50. Und es ist um 8:30. Gut.", "de", ["Es kostet 3,50.", " Und es ist um 8:30.", " Gut."]),
        ("„Ja.“ Er ging. »Nein!« Sie blieb.", "de", ["„Ja.“", " Er ging.", " »Nein!«", " Sie blieb."]),
        ("« Oui ! » dit-il. « Non. » Puis rien.", "fr", ["« Oui ! » dit-il.", " « Non. » Puis rien."]),
        ("«Sí.» Luego… nada. ¿Qué? ¡No!", "es", ["«Sí.»", " Luego… nada.", " ¿Qué?", " ¡No!"]),
        ("Hoy es 3. Luego es 4.", "es", ["Hoy es 3.", " Luego es 4."]),
        ("「はい。」と言う。行く！？次", "ja", ["「はい。」と言う。", "行く！？", "次。"]),
        ("네? 3.5입니다. 끝", "ko", ["네?", " 3.5입니다.", " 끝."]),
    ],
)
def test_sentences_end_where_their_script_ends_them(text, language, sentences):
    limits = {"token_max_n": 1, "token_min_n": 0, "merge_len": 0}
    assert [piece for piece, _ in split_paragraph([text], len, language, **limits)] == sentences


FRAGMENTS = st.sampled_from(
    [sentence for sentences in SENTENCES.values() for sentence in sentences]
    + [
        *ENGLISH,
        *CHINESE,
        "<|ja|>",
        "[laughter]",
        "한3",
        "の",
        "21 ",
        "。",
        "... ",
        " »",
        "“ ",
        "\n\n",
        "\u00ad",
        "۳ ",
        "😀",
    ]
)


@given(text=st.lists(FRAGMENTS, min_size=1, max_size=12).map("".join), language=st.sampled_from([None, *SENTENCES]))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_mixture_is_spoken_whole(text, language, front_end):
    try:
        parts = list(front_end.located(text, language))
    except InvalidText:
        return
    assert [one.start for one in parts] == [0, *(one.end for one in parts[:-1])]
    assert parts[-1].end == len(text)
    if "<|" in text or (language or detect_language(text)) not in ("en", "zh"):
        said = dense("".join(one.spoken for one in parts))
        letters = [one for one in dense(text.replace("\u00ad", "")) if one.isalnum()]
        assert [one for one in said if one.isalnum()] == letters


def test_tags_of_languages_are_left_to_the_tokenizer(front_end, tokenizer):
    own = Tokenizer.from_str(tokenizer.to_json())
    own.add_special_tokens([AddedToken("<|ja|>", special=True, normalized=False)])
    known = TextTokenizer(own)
    text = "<|ja|>今日は3時です。Well, 3 of them."
    assert TextFrontEnd(known).segments(text) == front_end.segments(text) == [text]
    assert known.encode(text)[0] == known.token_id("<|ja|>")
    assert "<|ja|>" in [words for words, _ in whole_words("<|ja|> 今日は、<|ja|>here <b>")]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([" ¿", "Qué", " tal", "?"], [" ¿Qué", " tal?"]),
        (["スーパー", "で"], ["スーパー", "で"]),
        (["При", "вет, ", "ми", "р"], ["Привет,", " мир"]),
        (["안녕", "하세요 ", "여러분"], ["안녕하세요", " 여러분"]),
        (["aujourd'", "hui à", " 8"], ["aujourd'hui", " à", " 8"]),
    ],
)
def test_words_that_arrive_are_whole_in_each_script(pieces, words):
    assert [one for one, _ in whole_words(pieces)] == words


def test_a_model_of_one_script_reads_as_ever_and_refuses_other_scripts(latin):
    assert latin.segments("Ich habe 21 Euro und das ist gut.") == ["Ich habe twenty one Euro und das ist gut."]
    assert latin.segments("Ich habe 21 Euro", "de") == ["Ich habe 21 Euro."]
    for language in ("zh", "ja", "ko", "ru"):
        with pytest.raises(InvalidRequest, match=f"^language: the model does not know '{language}' .* another model$"):
            latin.segments("Hello.", language)
    with pytest.raises(
        InvalidRequest,
        match=r"^language: 'pt' is not one of zh, en, ja, ko, de, es, fr, it, ru, yue \(taken for zh\), auto; choose",
    ):
        latin.segments("Hello.", "pt")


def test_long_texts_of_each_language_begin_at_once(front_end):
    for language in SENTENCES:
        text = joined(language, 60)[0][:20_000]
        parts = front_end.located(text)
        first = next(parts)
        assert 0 < first.end < 600
        assert all(one.end == other.start for one, other in pairwise([first, *parts]))
