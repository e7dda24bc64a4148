"""Cantonese: numbers as in Mandarin, in traditional characters, with its own words where they differ."""

from __future__ import annotations

from dataclasses import replace

from vivavoce.service.text.natural import chinese
from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import ROMAN
from vivavoce.service.text.natural.grammar import Match
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Rule

_TRADITIONAL = str.maketrans(
    "两万亿点负时间圆顷镑磅赫兹节摄盎约冲号钟机开个识减会术书东车门头级历",
    "兩萬億點負時間圓頃鎊磅赫茲節攝盎約衝號鐘機開個識減會術書東車門頭級歷",
)
_UNITS = {"kg": "公斤", "°C": "度", "℃": "度", "min": "分鐘", "h": "個鐘"}
_CURRENCIES = {"$": "蚊", "HK$": "港元", "US$": "美金", "¥": "円", "￥": "円", "RMB": "人民幣", "CNY": "人民幣"}
_WORDS = {
    "phone_cue": "打|電話係|電話：|電話:|致電|熱線",
    "score_cue": "比分|贏|輸|勝|負|打和|領先",
    "ratio_cue": "比例|比分|贏|輸|之比",
}


def _written(said: str) -> str:
    return said.translate(_TRADITIONAL)


class Cantonese(chinese.Chinese):
    """Cantonese."""

    locale = replace(
        chinese.LOCALE,
        language="yue",
        phone_digits=(),
        units={key: (_UNITS.get(key, _written(name)),) for key, (name,) in chinese.LOCALE.units.items()},
        currencies={
            key: ((_CURRENCIES.get(key, _written(main[0])),), ())
            for key, (main, _) in chinese.LOCALE.currencies.items()
        },
        signs={sign: _written(name) for sign, name in chinese.LOCALE.signs.items()},
        words={key: word if "cue" in key else _written(word) for key, word in chinese.LOCALE.words.items()} | _WORDS,
    )

    def cardinal(self, value: int, after: str = "") -> str:
        """2 is 兩 before what is counted."""
        return _written(super().cardinal(value, after))

    def magnitude(self, number: Number) -> str:
        """萬, 億."""
        return _written(super().magnitude(number))

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """The day is a 號."""
        return super().date(year, month, day, written).replace("日", "號")

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """14:30 is 十四點三十分."""
        return _written(super().time(hour, minute, second, half))

    def unit(self, number: Number, forms: Forms) -> str:
        """120km/h is 每小時一百二十公里."""
        return _written(super().unit(number, forms))


def _score(voice: Cantonese, found: Match) -> str:
    return voice.score((int(found["a"]), int(found["b"])))


Cantonese.rules = (
    Rule("phone", r"(?<![\d-])[2-9]\d{3}[ -]\d{4}(?![\d-])",
         lambda voice, found: f"{voice.digits(found[0][:4])}，{voice.digits(found[0][5:])}"),
    Rule("date", r"(?<![\d/.])(?P<m>1[0-2]|0?[1-9])/(?P<d>3[01]|[12]\d|0?[1-9])(?=[先喺去至到嚟返之前後])",
         lambda voice, found: voice.date(None, int(found["m"]), int(found["d"]))),
    Rule("roman", rf"{ROMAN}(?=世)", lambda voice, found: voice.cardinal(roman_value(found[0])), "letter"),
    Rule("range", r"(?<=\d) ?[~–—-] ?(?=\d{1,2}:)", lambda voice, found: "至", "sign"),
    Rule("score", r"(?P<a>(?<![\d.])\d{1,3})[-:：](?P<b>\d{1,3})(?!\d)(?=贏|輸|打和|領先|落後)", _score),
    *chinese.Chinese.rules,
)  # fmt: skip
VERBALIZER = Cantonese()
