"""Mandarin Chinese, in simplified or traditional characters as the text is: numbers are said alike in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vivavoce.service.text.natural.grammar import Match, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Forms, Locale, Number
from vivavoce.service.text.natural.verbalizer import Rule, Verbalizer

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "万亿", "亿亿", "万亿亿", "亿亿亿", "万亿亿亿", "亿亿亿亿")
# After these a 2 is 两: measure words, and units that are counted.
_COUNTED = compiled(
    r"年(?!级|級)|[个個只隻条條次张張本位人天周点點倍种種件台臺辆輛杯块塊元岁歲层層遍份句段篇章对對双雙排组組批棵朵头頭匹座间間]"
    r"|[家瓶碗斤米套名万萬亿億千百分秒把根颗顆首部道门門架艘场場片粒串袋盒箱滴步顿頓趟番幅支枝枚株项項款期届屆季国國方者边邊]"
    r"|[侧側地处處口户戶盘盤尺寸里吨噸升克度成半]|公[里斤分尺升顷]|小[时時]|分[钟鐘]|英[里尺寸镑]|毫[米升克]|厘米|千[米克]|平方|立方"
    r"|美元|欧元|星期|[礼禮]拜"
)
LOCALE = load_tables("zh").locale


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

    locale: ClassVar[Locale] = LOCALE

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
        said = f"{self.cardinal(denominator)}分之{self.cardinal(numerator)}"
        return f"{self.cardinal(whole)}又{said}" if whole else said

    def score(self, sides: Sequence[int]) -> str:
        """3-2 is 三比二."""
        return "比".join(map(self.cardinal, sides))

    def reign(self, value: int) -> str:
        """Louis XIV is Louis十四世."""
        return f"{self.cardinal(value)}世"


def _year(voice: Chinese, found: Match) -> str:
    return voice.year(int(found["a"])) + (f"到{voice.digits(found['b'])}" if found["b"] else "")


def _power(voice: Chinese, found: Match) -> str:
    base = voice.cardinal(int(found["a"])) if found["a"].isdecimal() else found["a"]
    return f"{base}的{voice.cardinal(int(found['e']))}次方"


def _short_year(voice: Chinese, found: Match) -> str:
    return voice.digits(found["y"])


def _phone(voice: Chinese, found: Match) -> str:
    said = voice.digits("".join(filter(str.isdigit, found[0])), phone=True)
    return f"加{said}" if found[0][0] == "+" else said


def _identity(voice: Chinese, found: Match) -> str:
    return "".join(voice.digits(one, phone=True) if one.isdigit() else one for one in found[0])


_NUMBERED = "身份证|编号|卡号|账号|帐号|单号|学号|工号|邮编|验证码|密码|QQ|车牌|代码|尾号|航班|編號|證號|號碼|号码|证号"
_NO_DIGIT = r"(?<![\d.,])"
Chinese.rules = (
    Rule("year", rf"{_NO_DIGIT}(?P<a>[12]\d{{3}})(?:\s?[-–—~～至到/]\s?(?P<b>[12]\d{{3}}))?"
         r"(?=\s?(?:年(?!级)|赛季|学年|財年|财年)|(?<=《\d{4})》)", _year),
    Rule("year", rf"(?:(?<=['’‘])|{_NO_DIGIT}(?=[09]))(?P<y>\d\d)(?=年(?!级|代|来|前|后|内|间|以))", _short_year),
    Rule("phone", r"(?<![\d.])(?:\+?86[- ]?)?1[3-9]\d(?:[- ]?\d{4}){2}(?!\d)", _phone),
    Rule("phone", r"(?<![\d.])(?:0\d{2,3}[- ]?\d{7,8}|[48]00[- ]?\d{3}[- ]?\d{4})(?!\d)", _phone),
    Rule(
        "digits",
        rf"(?<=(?:{_NUMBERED})(?:号码?|是|为|為|:|：| ){{0,3}}(?:\p{{Han}}?[A-Z])?)(?<!\d)\d{{3,30}}[Xx]?"
        r"(?![\d.]\d|年)",
        _identity,
    ),
    Rule("digits", r"(?<![\d.])\d{17}[\dXx](?!\d)", _identity),
    Rule("digits", r"(?<![\d.,])\d{13,36}(?![\d.,]\d)", _identity),
    Rule("digits", r"(?<=(?<![A-Za-z])[A-Z]{2})\d{3,4}(?!\d|[.,]\d)", _identity),
    Rule("digits", r"(?<![\d.])\d{3,4}(?=号?(?:室|房|包厢|教室))", lambda voice, found: voice.digits(found[0])),
    Rule("sign", r"(?<=[按拨])[#*]", lambda voice, found: LOCALE.signs[f"address {found[0]}"], "sign"),
    Rule("digits", r"(?<=\d米)\d\d(?!\d)", lambda voice, found: voice.digits(found[0])),
    Rule("phone", r"(?<!\d)(?:1[12]\d|12\d{3})(?=报警|急救|火警|热线|消防|電話|电话)", _phone),
    Rule("power", r"(?P<a>\d+|\p{Latin})\^(?P<e>\d+)", _power, "digit letter"),
    Rule("more", r"(?<=[\d万亿千百])\+(?![\d\p{L}])", lambda voice, found: "多", "sign"),
    Rule("ordinal", r"(?<=第)\d{1,9}(?!\d|\.\d)", lambda voice, found: voice.cardinal(int(found[0]))),
    Rule("ordinal", r"No\.\s?(?P<n>\d{1,4})(?!\d)",
         lambda voice, found: f"第{voice.cardinal(int(found['n']))}", "letter"),
    Rule("per", r"(?<=[\p{Han}\d%])/(?=[人天日月年次斤个個件小时時分秒吨米套张台平㎡升克晚])(?<![年月日和或/男女]/)",
         lambda voice, found: "每", "sign"),
    Rule("money", r"(?:HK|US|NT)?[$￥¥](?=[\d,.]+\s?[万千百亿]?[蚊元块塊圆圓])",
         lambda voice, found: "", "letter sign"),
    Rule("range", r"(?<=[日号月年时点分][）)]?)\s?[-–—~～]\s?(?=\d)", lambda voice, found: "到", "sign"),
    Rule("score", r"(?P<a>(?<![\d.])\d{1,3})[-:：](?P<b>\d{1,3})(?=(?:[获大小险]?[胜负平赢输击]|战[胜平]|领先|落后))",
         lambda voice, found: voice.score((int(found["a"]), int(found["b"])))),
)  # fmt: skip
VERBALIZER = Chinese()
