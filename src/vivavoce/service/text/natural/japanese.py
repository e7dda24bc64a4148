"""Japanese: numbers in kanji, as counters stand in writing ("三個", "一人"), so that the model chooses their sound."""

from __future__ import annotations

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import ROMAN
from vivavoce.service.text.natural.grammar import Match
from vivavoce.service.text.natural.myriad import Myriad
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.verbalizer import Rule


class Japanese(Myriad):
    """Japanese."""

    tables = load_tables("ja")
    locale = tables.locale


def _digits(voice: Japanese, found: Match) -> str:
    return "の".join(map(voice.digits, found[0].split("-"))) + ("、" if found["post"] else "")


def _blocks(voice: Japanese, found: Match) -> str:
    return "の".join(voice.cardinal(int(part)) for part in found[0].split("-"))


def _speed(voice: Japanese, found: Match) -> str:
    return voice.cardinal(int(found["n"])) + ("キロ" if "k" in found[0] else "メートル")


Japanese.rules = (
    Rule("phone", r"(?<![\d-])0\d{1,4}-\d{1,4}-\d{3,4}(?![\d-])(?P<post>)|(?<=〒 ?)(?P<post>\d{3}-\d{4})(?!\d)",
         _digits),
    Rule("address", r"(?<=\p{Han})\d{1,4}(?:-\d{1,4}){2,3}(?![\d-])|(?<=[区市町村条丁目])\d{1,4}-\d{1,4}(?![\d-])",
         _blocks),
    Rule("date", r"(?<![\d/.]|[率合比約確][はがの]?)(?P<m>1[0-2]|0?[1-9])/(?P<d>3[01]|[12]\d|0?[1-9])"
         r"(?=(?:(?<=1[3-9]|2\d|3\d)[はも]|です|でし|に|から|まで|より|[(（][月火水木金土日]|[、。]?\Z))",
         lambda voice, found: voice.date(None, int(found["m"]), int(found["d"]))),
    Rule("weekday", r"[(（](?P<day>[月火水木金土日])[)）](?<=日[(（].[)）])",
         lambda voice, found: f"、{found['day']}曜日、", "sign"),
    Rule("range", r"(?<=[\d時分日月年]) ?[~〜～–—-] ?(?=\d{1,4}[:時月日年])", lambda voice, found: "から", "sign"),
    Rule("speed", r"(?<=[時秒]速)(?P<n>\d+) ?(?:km/h|m/s)", _speed),
    Rule("roman", rf"{ROMAN}(?=世)", lambda voice, found: voice.cardinal(roman_value(found[0])), "letter"),
    Rule("number", r"No\. ?(?=\d)", lambda voice, found: "ナンバー", "letter"),
    Rule("page", r"[Pp]\. ?(?P<n>\d{1,4})(?!\d)",
         lambda voice, found: f"{voice.cardinal(int(found['n']))}ページ", "letter"),
)  # fmt: skip
VERBALIZER = Japanese()
