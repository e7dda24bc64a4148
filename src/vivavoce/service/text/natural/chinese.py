"""Mandarin Chinese, in simplified or traditional characters as the text is: numbers are said alike in both."""

from __future__ import annotations

from vivavoce.service.text.natural.grammar import compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Verbalizer
from vivavoce.service.text.natural.written import written_rules

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "万亿", "亿亿", "万亿亿", "亿亿亿", "万亿亿亿", "亿亿亿亿")
TABLES = load_tables("zh")
LOCALE = TABLES.locale
_COUNTED = compiled(TABLES.pattern("counted"))  # after these a 2 is 两


def _below_ten_thousand(value: int) -> str:
    said, waiting = "", False
    for place in (3, 2, 1, 0):
        digit = value // 10**place % 10
        if digit:
            said += ("零" if waiting and said else "") + _DIGITS[digit] + _PLACES[place]
        waiting = not digit
    return said


class Chinese(Verbalizer):
    """Mandarin."""

    locale = LOCALE

    def cardinal(self, value: int, after: str = "") -> str:
        """2 is 两 before what is counted, and in 两百, 两千, 两万; 10 to 19 begin with 十."""
        if value == 0:
            return "零"
        if value == 2 and _COUNTED.match(after):
            return "两"
        said, place, gap = "", 0, False
        while value:
            value, group = divmod(value, 10_000)
            if group:
                words = _below_ten_thousand(group)
                said = f"{words}{_GROUPS[place]}{'零' if gap and said else ''}{said}"
                gap = group < 1000
            else:
                gap = gap or bool(said)
            place += 1
        if said.startswith("一十"):
            said = said[1:]
        return f"两{said[1:]}" if said[0] == "二" and said[1:2] in ("百", "千", "万", "亿") else said

    def ordinal(self, value: int, after: str = "") -> str:
        """3rd is 第三."""
        return f"第{self.cardinal(value)}"

    def magnitude(self, number: Number) -> str:
        """万, 亿 and what they make."""
        return {3: "千", 4: "万", 6: "百万", 8: "亿", 12: "万亿"}[number.power]

    def number(self, number: Number, after: str = "") -> str:
        """2万 is 两万."""
        return super().number(
            number, self.magnitude(number) if number.power and not number.decimals else "" if number.decimals else after
        )

    def year(self, value: int) -> str:
        """2024 is 二零二四."""
        return self.digits(str(value))

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """二零二四年三月五日."""
        parts = (
            f"{self.year(year)}年" if year is not None else "",
            f"{self.cardinal(month)}月" if month else "",
            f"{self.cardinal(day)}日" if day else "",
        )
        return "".join(parts)

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """9:05 is 九点零五分, 9:00 九点, 2:30 两点三十分."""
        said = {"am": "上午", "pm": "下午", "": ""}[half] + self.cardinal(hour, "点") + "点"
        if minute or second:
            said += f"{'零' if 0 < minute < 10 else ''}{self.cardinal(minute)}分"
        return said + (f"{self.cardinal(second)}秒" if second else "")

    def duration(self, hours: int, minutes: int, seconds: int) -> str:
        """一小时二分三秒."""
        return f"{self.cardinal(hours, '小时')}小时{self.cardinal(minutes)}分{self.cardinal(seconds)}秒"

    def money(self, number: Number, currency: str) -> str:
        """¥1,288.00 is 一千二百八十八元."""
        decimals = number.decimals.rstrip("0") and number.decimals
        return super().money(Number(number.whole, decimals, number.negative, number.power), currency)

    def percent(self, number: Number) -> str:
        """12.5% is 百分之十二点五."""
        said = f"百分之{self.number(Number(number.whole, number.decimals))}"
        return f"负{said}" if number.negative else said

    def unit(self, number: Number, forms: Forms) -> str:
        """120km/h is 每小时一百二十公里."""
        if "{}" in forms[0]:
            return forms[0].format(self.number(number, forms[0].partition("{}")[2]))
        return super().unit(number, forms)

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is 二分之一, 1½ 一又二分之一."""
        if numerator > denominator:  # 120/80: one after the other
            return f"{self.cardinal(numerator)}、{self.cardinal(denominator)}"
        parts = self.cardinal(denominator)
        said = f"{parts[1:] if denominator in (100, 1000, 10_000) else parts}分之{self.cardinal(numerator)}"
        return f"{self.cardinal(whole)}又{said}" if whole else said

    def reign(self, value: int) -> str:
        """Louis XIV is Louis十四世."""
        return f"{self.cardinal(value)}世"


Chinese.rules = written_rules(TABLES)
VERBALIZER = Chinese()
