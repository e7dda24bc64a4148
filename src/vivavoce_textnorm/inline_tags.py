"""Reads tags that control how a text is read, such as `[pause 0.5s]` and `[spell: NASA]`; `ssml` reads XML tags.

`Runs` splits a text into runs. In a run, a private-use character of Unicode stands for the content of each tag such as
`[spell: NASA]`, so that no rule changes it. The content is put in words when the language of its sentence is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from vivavoce.errors import InvalidText
from vivavoce_textnorm.addresses import spell_address
from vivavoce_textnorm.grammar import LARGEST, Match, compiled, load_grammar, parse_number
from vivavoce_textnorm.semiotic_classes import Cursor, read_date, read_time
from vivavoce_textnorm.types import Piece, Say, TextRun
from vivavoce_textnorm.verbalizer import Verbalizer

MAX_PAUSE_S = 10.0
"""Maximum length of a single pause, in seconds; the engine has the same limit."""
MAX_PAUSES_S = 120.0
"""Maximum length of all pauses of a text together, in seconds."""
MAX_RUNS = 500
"""Maximum number of runs of a text: each run is synthesised by itself, which takes more time than a run's words."""

FORMS: Mapping[str, Match] = {
    "spell": compiled(r".*[\p{L}\p{N}].*"),
    "digits": compiled(r"(?=.*\d)[\d\s.,/()+-]+"),
    "cardinal": compiled(r"[-−+]?\d[\d.,'’\s]*"),
    "ordinal": compiled(r"\d{1,36}\W?\p{L}{0,2}"),
    "year": compiled(r"\d{1,4}"),
    "date": compiled(r".*\d.*"),
    "time": compiled(r".*\d.*"),
    "phone": compiled(r"(?=.*\d)[+\d\s./()-]+"),
}
"""Name of a tag `[name: …]` → pattern that the tag's content must match."""
SECONDS = r"(?P<number>\d{1,6}(?:[.,]\d{0,6})?|\.\d{1,6})\s?(?P<unit>(?i:m?s(?:ec)?))"
HOW = "|".join(FORMS)
STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.7, "x-strong": 1.0}
"""Strength of an SSML break → seconds of silence."""
# <break> works in any text, because language models write it in texts that are not SSML.
_BREAK = (
    rf"<break(?:\s+(?:time\s*=\s*(?P<quote>[\"'])\+?{SECONDS}(?P=quote)"
    r"|time\s*=\s*(?P<quote>[\"'])(?P<wrong>(?=\D*\d)[^\"'<>\n]{1,40})(?P=quote)"
    r"|strength\s*=\s*(?P<quote>[\"'])(?P<strength>none|(?:x-)?(?:weak|strong)|medium)(?P=quote)))?\s*/?>(?:\s*</break>)?"
)
_BRACKET = compiled(rf"\[(?:pause(?: | ?[:=] ?){SECONDS}|(?P<how>{HOW}): ?(?P<content>[^\[\]\n]{{1,100}}))\]|{_BREAK}")
OPEN_BRACKET = compiled(
    rf"\s*(?:\[(?:pause[ :=][^\[\]\n]{{0,20}}|(?:{HOW}):[^\[\]\n]{{0,101}}|\p{{Ll}}{{0,8}})|<break\b[^<>\n]{{0,40}})\Z"
)
"""Matches an unclosed bracket or <break> at the end of a text."""
_PRIVATE = range(0xF0000, 0xFFFFE)
_NUMBERS = compiled(r"\d+")


class Runs:
    """Builds the runs of a text in order; `language` and `rate` apply to the text that is added next."""

    def __init__(self, text: str) -> None:
        self.runs: list[TextRun] = []
        self.language: str | None = None
        self.rate = 1.0
        self._text, self._said, self._paused_s = text, dict[str, Say](), 0.0
        self._free = (one for one in map(chr, _PRIVATE) if one not in text)

    def add(self, start: int, end: int, spoken: str, rule: str) -> None:
        last = self.runs[-1] if self.runs else None
        changed = last is None or last.pause_s or (last.language, last.rate) != (self.language, self.rate)
        if last is None or (spoken and changed):
            self._begin(last := TextRun([], self._said, self.language, self.rate))
        if end > start:
            same = spoken == self._text[start:end]
            last.pieces.append(Piece(start, end, spoken, None if same else rule))

    def add_text(self, start: int, end: int) -> None:
        for found in _BRACKET.finditer(self._text, start, end):
            if found["how"] and not FORMS[found["how"]].fullmatch(found["content"]):
                continue  # not a tag
            if found.start() > start:
                self.add(start, found.start(), self._text[start : found.start()], "")
            start = found.end()
            if found["how"]:
                self.say(found.start(), start, Say(found["how"], found["content"]))
            else:
                if found["wrong"] is not None:
                    raise unknown_break(found["wrong"], found.start())
                self.pause(found.start(), start, seconds_of(found))
        if end > start or not self.runs:
            self.add(start, end, self._text[start:end], "")

    def say(self, start: int, end: int, what: Say) -> None:
        sign = next(self._free)
        self._said[sign] = what
        self.add(start, end, sign, "say-as")

    def pause(self, start: int, end: int, seconds: float) -> None:
        """Add a pause; the characters start … end − 1 of the text are its tag. InvalidText: the pause is too long."""
        if seconds > MAX_PAUSE_S:
            raise InvalidText(
                f"text: the pause at character {start} is {seconds:g} s, the limit is {MAX_PAUSE_S:g} s; shorten it"
            )
        self._paused_s += seconds
        check_paused(self._paused_s)
        if seconds:
            self._begin(TextRun([], pause_s=seconds))
        self.add(start, end, "", "pause")

    def _begin(self, run: TextRun) -> None:
        if len(self.runs) == MAX_RUNS:
            raise InvalidText(
                f"text: it has more than {MAX_RUNS} stretches between pauses and changes of rate or language; split it"
            )
        self.runs.append(run)


def seconds_of(found: Match) -> float:
    if not found["number"]:
        return STRENGTHS[found["strength"] or "medium"]
    return float(found["number"].replace(",", ".")) / (1000 if found["unit"][0] in "mM" else 1)


def unknown_break(written: str, start: int) -> InvalidText:
    remedy = f"write time='500ms', or one of {', '.join(STRENGTHS)}"
    return InvalidText(f"text: break {written!r} at character {start} is unknown; {remedy}")


def check_paused(seconds: float) -> None:
    if seconds > MAX_PAUSES_S:
        raise InvalidText(f"text: its pauses add up to {seconds:g} s, the limit is {MAX_PAUSES_S:g} s; shorten some")


def put_in_words(what: Say, voice: Verbalizer) -> str | None:
    content, locale = what.content.strip(), voice.locale
    place = Cursor(load_grammar(voice), content, 0, len(content))
    digits, groups = "".join(filter(str.isdecimal, content)), _NUMBERS.findall(content)
    if what.how == "spell":
        return spell_address(place, " ".join(content.upper()))
    if what.how == "phone":
        said = [voice.digits(group, phone=True) for group in groups]
        plus = locale.signs.get("+", "") if content[0] == "+" else ""
        return voice.join(plus, (", " if locale.joint else "").join(said))
    if what.how == "digits" or len(digits) > LARGEST:
        return voice.digits(digits)
    if what.how in ("ordinal", "year"):
        return voice.ordinal(int(digits)) if what.how == "ordinal" else voice.year(int(digits))
    if what.how == "cardinal":
        number = parse_number(content.lstrip("+-−"), locale, content[0] in "-−")
        return voice.number(number) if content.count(locale.decimal) <= 1 else None
    if what.order:
        parts = dict(zip(what.order, map(int, groups), strict=False))
        year, month, day = parts.get("y"), parts.get("m"), parts.get("d")
        fits = len(groups) == len(what.order) and (month or 1) <= 12 and (day or 1) <= 31
        return voice.date(year, month, day) if fits and 0 not in (month, day) else None
    found = read_date(place) if what.how == "date" else read_time(place)
    return found[1] if found and found[0] == len(content) else None
