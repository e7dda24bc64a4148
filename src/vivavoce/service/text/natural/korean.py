"""Korean: native numerals before most counters ("세 개", "열두 시"), Sino-Korean ones elsewhere ("삼 층")."""

from __future__ import annotations

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import ROMAN
from vivavoce.service.text.natural.grammar import Match, compiled
from vivavoce.service.text.natural.myriad import Myriad
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Number
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("ko")
_NATIVE, _NATIVE_TENS = (("", *_TABLES.words(name)) for name in ("native", "native_tens"))
_COUNTERS = compiled(_TABLES.pattern("counters"))


class Korean(Myriad):
    """Korean."""

    tables, locale = _TABLES, _TABLES.locale

    def digits(self, digits: str, phone: bool = False) -> str:
        """Digits one by one, as one word."""
        return super().digits(digits, phone).replace(" ", "")

    def cardinal(self, value: int, after: str = "") -> str:
        """3 is "세" before a native counter, else "삼"."""
        counter = _COUNTERS.match(after) if 0 < value < 100 else None
        if not counter or (counter[0] == "시" and value > 12):
            return super().cardinal(value)
        return "스무" if value == 20 else _NATIVE_TENS[value // 10] + _NATIVE[value % 10]

    def ordinal(self, value: int, after: str = "") -> str:
        """1st is "첫 번째"."""
        return "첫 번째" if value == 1 else super().ordinal(value)

    def group(self, group: int, place: int, value: int) -> str:
        """10,000 is 만, without a one before it."""
        return "" if group == 1 and place == 1 and value < 20_000 else super().group(group, place, value)

    def number(self, number: Number, after: str = "") -> str:
        """3.14 is "삼 점 일사"."""
        said = self.cardinal(number.whole, "" if number.decimals or number.power else after)
        said += f" 점 {self.digits(number.decimals)}" if number.decimals else ""
        said += self.magnitude(number) if number.power else ""
        return self.join(self.locale.words["minus"] if number.negative else "", said)

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """June and October have forms of their own."""
        return (
            super().date(year, month, day).replace("육 월", "유월").replace("십 월", "시월" if month == 10 else "십 월")
        )


def _equals(voice: Korean, found: Match) -> str:
    return "은 " if found.string[: found.start()].rstrip()[-1:] in "013678" else "는 "


def _speed(voice: Korean, found: Match) -> str:
    return f"{voice.cardinal(int(found['n']))} {'킬로미터' if 'k' in found[0] else '미터'}"


Korean.rules = (
    Rule("phone", r"(?<![\d-])(?:0\d{1,2}-\d{3,4}|1[5-9]\d\d)-\d{4}(?![\d-])",
         lambda voice, found: ", ".join(voice.digits(part, phone=True) for part in found[0].split("-"))),
    Rule("ordinal", r"(?<![\d.,])1(?= ?번 ?째)", lambda voice, found: "첫"),
    Rule("month", r"(?<!\d)(?:6|10)(?=월(?!드))", lambda voice, found: "유" if found[0] == "6" else "시"),
    Rule("score", r"(?<![\d.])(?P<a>\d{1,3}) ?대 ?(?P<b>\d{1,3})(?!\d|\p{Hangul}*년)",
         lambda voice, found: voice.score((int(found["a"]), int(found["b"])))),
    Rule("ordinal", r"(?<=제 ?|(?:버스|번호|문제|후보|채널|정답은?) )\d{1,4}(?=\p{Hangul})|\d{1,3}(?=번 "
         r"(?:출구|버스|문제|승강장|게이트|홈))",
         lambda voice, found: voice.cardinal(int(found[0]))),
    Rule("age", r"(?<!\d)[1-9]0(?=대 (?:남|여|초|중|후|이상|직장|청|부|환|젊))",
         lambda voice, found: voice.cardinal(int(found[0]))),
    Rule("temperature", r"(?<![\d.])-(?P<n>\d{1,3})(?= ?(?:도|℃|°C))",
         lambda voice, found: f"영하 {voice.cardinal(int(found['n']))}", "sign"),
    Rule("weekday", r"\((?P<day>[월화수목금토일])\)(?<=일 ?\(.\))",
         lambda voice, found: f" {found['day']}요일", "sign"),
    Rule("range", r"(?<=[\d시분일월년]) ?[~〜–—-] ?(?=\d{1,4}[:시월일년])", lambda voice, found: "에서 ", "sign"),
    Rule("address", r"(?<=[동리로길가] )(?P<a>\d{1,4})-(?P<b>\d{1,4})(?![\d~-])",
         lambda voice, found: f"{voice.cardinal(int(found['a']))} 다시 {voice.cardinal(int(found['b']))}"),
    Rule("people", r"(?<=(?:님|손님|어르신|어른|고객) )\d{1,2}(?= ?분)",
         lambda voice, found: voice.cardinal(int(found[0]), "명") + " "),
    Rule("fraction", r"(?<![\d./])(?P<n>\d{1,2})/(?P<d>\d{1,3})(?=\p{Hangul})(?!\p{Hangul}*일)",
         lambda voice, found: voice.fraction(0, int(found["n"]), int(found["d"]))),
    Rule("equals", r"= ?(?=\d)(?<=\d ?= ?)", _equals, "sign"),
    Rule("speed", r"(?<=[시초]속 ?)(?P<n>\d+) ?(?:km/h|m/s)", _speed),
    Rule("roman", rf"{ROMAN}(?= ?세)", lambda voice, found: voice.cardinal(roman_value(found[0])), "letter"),
    Rule("number", r"No\. ?(?=\d)", lambda voice, found: "넘버 ", "letter"),
)  # fmt: skip
VERBALIZER = Korean()
