"""Which of the family's nine languages a text is in: told from its script, and in Latin script from frequent words."""

from __future__ import annotations

import unicodedata
from collections import defaultdict

import regex

from vivavoce.frontend.text.official import Language, contains_chinese

# Words that are frequent in one language, neither English nor usual in names there (la, von, du), and its letters.
_FREQUENT: dict[Language, str] = {
    "en": """the and of to is are with for that this it you have not from by be at they we he she his my your their our
        had would could can there which what when who how does did were been if or but him them its these said""",
    "de": """der das und ist nicht ich wir sie ihr mit zu für auf dem den des ein eine einen einem einer wie oder aber
        auch sich sind haben habe wird werden wurde kann muss nach bei zum zur über noch nur uhr um dass wenn als es
        aus vom bis seit durch diese dieser sehr mehr heute dann hier alle kein keine mein meine sein bitte ä ö ü ß""",
    "es": """de el en los las al que una por para está es se su lo más pero muy como cuando este esta hay tiene tengo
        ser puede hoy usted también porque qué sobre entre cada nos ya hasta desde mi del con si todo ¿ ¡ ñ á í ó ú""",
    "fr": """de le les en est et un une dans que qu qui ce cet cette ces il elle nous vous ils je tu ne pas avec aux ou
        mais où être très ça ont sont chez au leur été des sur pour peut sera tous é ç œ è ê à â î ô û ù ë""",
    "it": """il lo gli un una di del al della dei delle che non con sono nel nella alle alla dal da più anche questo
        questa ore poi mi si ho se può essere viene tutti à è é ì ò ù""",
}
FREQUENT_WORDS = {language: frozenset(words.split()) for language, words in _FREQUENT.items()}
"""Of each language in Latin script, its frequent words that the others do not have or that tell it from them."""
_KNOWN = frozenset().union(*FREQUENT_WORDS.values())
# What names begin with (Los Angeles) counts in small letters only; a short word in capitals may be an acronym.
_NO_EVIDENCE = regex.compile(r"Al|Del|Des|Les|Los|Las|\p{Lu}{1,3}")

# A の alone is written in Chinese as well, and single Cyrillic letters in formulas.
_EVIDENCE = regex.compile(
    r"(?P<ja>(?!の(?!\p{Hiragana}))[\p{Hiragana}\p{Katakana}][\p{Hiragana}\p{Katakana}ー]*)|(?P<ko>\p{Hangul}+)"
    r"|(?P<ru>\p{Cyrillic}{2,})|(?P<zh>\p{Han}+)|(?P<question>[¿¡])|(?P<tag>\[\S+?\]|<\S+?>)|[\p{Latin}\p{M}]+"
)
# Frequent characters of Chinese that Japanese does not write.
_CHINESE_ALONE = regex.compile(
    "[你您她们們这這哪吗嗎呢吧啊说說没沒还个么麼很让为从对过时见买卖钱话问间门开关东车长头发听现经动欢请谁样岁块]"
)


def recognise(text: str, before: Language | None = None) -> Language:
    """The language of a text; of one that does not show it, that of the text before it.

    Kana, hangul and Cyrillic words show theirs, unless as many others are Chinese or English beyond doubt. In Latin
    script it takes two different frequent words, or one and a letter with a mark, and two more for each English word.
    What is left is Chinese where the text holds a Chinese character, else English.
    """
    met: defaultdict[str, set[str]] = defaultdict(set)
    for match in _EVIDENCE.finditer(unicodedata.normalize("NFC", text)):
        if not _NO_EVIDENCE.fullmatch(match[0]):
            met[match.lastgroup or "latin"].add(match[0].lower())
    shown = met["latin"].union(met["question"], *(met["latin"] - _KNOWN))
    found = {language: shown & words for language, words in FREQUENT_WORDS.items()}
    english, chinese = len(found.pop("en")), set(_CHINESE_ALONE.findall("".join(met["zh"])))
    rivals: dict[Language, set[str]] = {"ja": chinese, "ko": met["zh"], "ru": met["zh"]}
    for script in rivals:
        if len(met[script]) >= max(min(2, 1 + english), english, len(rivals[script]) + 1):
            return script
    if contains_chinese(text):
        return "ja" if before == "ja" and not chinese else "zh"
    latin = max(found, key=lambda one: len(found[one]))
    if len(found[latin]) >= 2 + 2 * english and (met["question"] or max(map(len, found[latin])) > 1):
        return latin
    return before if before not in (None, "zh") and not english else "en"
