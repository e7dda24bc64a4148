"""English rules for what begins with a digit, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vivavoce_textnorm.grammar import Match, compiled, parse_number
from vivavoce_textnorm.rules import Rule

if TYPE_CHECKING:
    from vivavoce_textnorm.english import English

_SWAPPED = str.maketrans(".,", ",.")
_INCH = compiled(r"(?<=\d)\"")


def decade(voice: English, found: Match) -> str:
    """1990s, '80s; also a number of things: B-52s, under-6s."""
    digits = found["d"]
    last = voice.numeral(int(digits[-2:])) if digits[-2:] != "00" else ""
    plural = f"{last[:-1]}ies" if last.endswith("y") else f"{last}es" if last.endswith("x") else f"{last}s"
    if len(digits) < 3 and last:
        return plural
    if len(digits) == 3:
        return f"{voice.numeral(int(digits))}s"
    if last:
        return f"{voice.numeral(int(digits[:2]))} {plural}"
    return "two thousands" if digits in ("00", "2000") else f"{voice.numeral(int(digits[:2]))} hundreds"


def year(voice: English, found: Match) -> str | None:
    """A number of four digits is a year unless a noun in the plural, or a word before it, shows that it counts."""
    before = found.string[max(0, found.start() - 16) : found.start()].lower().split()
    after = found.string[found.end() : found.end() + 20]
    word = after.strip().split(" ")[0].strip(".,;:!?)\"'’”")
    plural = len(word) > 3 and word[-1] == "s" and word[-2] not in "suia"
    counted = after[:1] == " " and word.islower() and (plural or word in voice.not_years)
    cue = before[-1].strip("(") if before else ""
    if cue not in voice.year_cues and (counted or cue in voice.number_cues or found[0] < "1100"):
        return None
    return voice.year(int(found[0]))


def inches(voice: English, found: Match) -> str | None:
    """6.1" is in inches unless the sign closes a quotation."""
    line = found.string[found.string.rfind("\n", 0, found.start()) + 1 : found.start()]
    if found["sign"] == '"' and (line.count('"') - len(_INCH.findall(line))) % 2:
        return None
    if found["n"] is None:
        return voice.fraction(int(found["w"] or 0), int(found["a"]), int(found["b"])) + " inch"
    said = voice.unit(parse_number(found["n"], voice.locale), ("inch",) if found["noun"] else ("inch", "inches"))
    return voice.join(voice.number(parse_number(found["m"], voice.locale)) + " to" if found["m"] else "", said)


def continental(voice: English, found: Match) -> str:
    """Numbers with continental European separators: 10.000,00 €, 1,5 km."""
    number = parse_number(found["n"].translate(_SWAPPED), voice.locale)
    sign = found["a"] or found["b"]
    if sign in voice.locale.units:
        return voice.unit(number, voice.locale.units[sign])
    return voice.money(number, sign) if sign else voice.number(number)


def fraction_or_date(voice: English, found: Match) -> str | None:
    """12/3 is a date behind a word such as "on", or "by" where it could hardly be a fraction."""
    month, day = int(found["m"]), int(found["d"])
    sure = found["sure"] is not None or found["m"][0] == "0" or month >= day
    return voice.date(None, month, day) if sure or (day > 12 and day not in (16, 32)) else None


def attributive(voice: English, found: Match) -> str:
    """A 3€ coffee: what is counted stands before a noun, and is singular."""
    power = voice.locale.magnitudes[found["mag"]] if found["mag"] else 0
    forms = voice.locale.units.get(found["unit"] or "") or voice.locale.currencies[found["sign"] or found["unit"]][0]
    number = parse_number(found["n"], voice.locale, power=power)
    cents = number.decimals if found["sign"] and not power and len(number.decimals) == 2 else ""
    said = voice.unit(replace(number, decimals="") if cents else number, (forms[0],))
    return voice.join(said, "oh" * cents.startswith("0"), voice.numeral(int(cents)) if cents else "")


# fmt: off
RULES = (
    Rule("seconds", "digit", r"""
        (?<=\b(?:after|for|within|every|under|over|than|takes?|took|lasts?|wait|timeout|sleep)[ :=]+)
        (?P<count>\d+) s (?!\p{L})
        """, "{count:s}", {"after 60s;": "after sixty seconds;"}),
    Rule("plural", "digit", r"(?<![\d.,]) (?P<name>10|100|1,?000) s (?=\ of\b)", "{name}", {"100s of": "hundreds of"}),
    Rule("decade", "digit sign", r"(?:(?<!\w) ['’‘])? (?<!\d) (?P<d>(?:1[1-9]|20)?\d0) ['’]?s (?!\p{L})",
         decade, {"'90s": "nineties"}),
    Rule("date", "digit", r"""
        (?<![\d.,/]) (?P<m>%MONTH%) / (?P<d>%DAY%) (?![\d/]|[.,]\d|[ -]\p{L}+\ (?:cups?|of))
        (?:
            (?P<sure>
                (?=\ ?(?:@|at)\ ?\d)
                |(?<=
                    (?i:
                        \b(?:on|due|dated|since|until|till|starting|beginning|starts|begins|ends|effective)
                        |%days%
                    )
                    \.?,?\ [\d/]+
                )
            )
            |(?<=(?i:\b(?:by|of|from|before|after|through|to|the))\ [\d/]+)|(?<=0\d/[\d]+)
        )
        """, fraction_or_date, {"Thu 6/12": "Thursday June twelfth"}),
    Rule("year", "digit", r"""
        (?<![\d.,:/$€£¥₹#@_\p{L}-]) (?:1\d\d\d|20\d\d)
        (?!
            [\d%\p{L}°]|[.,:/-]\d|:[\da-f]*:|\s?[-–—]\s?\d
            |\s?
            (?:
                [%€]|(?:k?[mWVg]|[kMG]?Hz|rpm|mAh|k?cal|m[gmlL]|lbs?|ft|mph|[MGT]B|px|psi|hp|nm)\b|km|kg|USD|EUR
                |million|billion|dollars|euros
            )
        )
        """, year, {"2005": "two thousand five"}),
    Rule("inches", "digit", r"""
        (?<![\d./$-])
        (?:(?:(?P<m>\d+) [-–])? (?P<n>\d+(?:\.\d+)?)|(?:(?P<w>\d+) [ -])? (?P<a>\d) / (?P<b>\d\d?))
        (?P<sign>[\"”″])
        (?=(?P<noun>\  (?!(?:x|by|long|wide|tall|deep|thick|high|and|of|in|or|at|to|is|on|from)\b) \p{L})?)
        """, inches, {'6.7" display': "six point seven inch display"}),
    Rule("number", "digit sign", r"""
        (?:(?P<a>€) \ ?)? (?<![\d.,])
        (?P<n>
            \d{1,3}(?:\.\d{3})+,\d\d|(?<=€\ ?) \d+,\d\d|\d+,\d\d (?=\ ?€)|\d+,\d\d? (?=\ ?(?:%units%) (?!\p{L}))
        )
        (?!\d) (?:\ ? (?P<b>€|%units% (?!\p{L})))?
        """, continental, {"1,5 km": "one point five kilometers"}),
    Rule("money", "digit sign", r"""
        (?<=\b(?i:an?|the|this|that|its|his|her|their|our|your|\d-year,)\ )
        (?:
            (?P<sign>%prices%) (?P<n>\d{1,3}(?:,\d{3})+|\d{1,9}(?:\.\d (?!0\b) \d?)?) (?:\.00)? (?![\d.,])
            (?:\ ? (?P<mag>thousand|million|billion|trillion|bn|[kmMB]) \b)?
            |(?P<n>\d{1,9}|\d{1,3}(?:,\d{3})+) [ -]? (?P<unit>%prices%|%units%)
        )
        (?=
            [ -]
            (?!
                (?i:
                    is|was|to|in|from|that|and|or|for|it|he|of|on|at|will|had|has|per|when|if|with|as|by|into
                    |each|off
                )
                \b
            )
            \p{L}{2}
        )
        """, attributive, {"A $20 bill": "A twenty dollar bill"}),
    Rule("dates", "digit", r"""
        (?<![\d.,:/$-]) (?P<ordinal>[0-3]?\d) \s?[-–—]\s? (?P<ordinal2>[0-3]?\d) \ (?P<name>%months%) (?!\p{L})
        """, "the {ordinal} to the {ordinal2} of {name}", {"3–5 May.": "the third to the fifth of May."}),
    Rule("count", "digit", r"""
        (?<![\p{L}\d.,$€£¥-]) (?:(?P<number>\d[\d,]*(?:\.\d+)?) [-–])? (?P<number2>\d[\d,]*(?:\.\d+)?)
        (?P<name>[mMkKB])
        (?=
            [ ]
            (?:
                people|viewers|users|jobs|subs|subscribers|followers|customers|copies|homes|households|barrels
                |shares|workers|voters|children|adults|downloads|views|streams|fans|residents|Americans|tonnes
                |tons|MAUs|DAUs|members|visitors|sales
            )
            \b
        )
        """, "{number~ to }{number2} {name}", {"7.5M users": "seven point five million users"}),
    Rule("count", "digit", r"""
        (?<![\p{L}\d.,$€£¥-]) (?:(?P<number>\d[\d,]*(?:\.\d+)?) [-–])? (?P<number2>\d[\d,]*(?:\.\d+)?)
        (?:
            (?P<name>[kMB]) (?=\+?\s (?!(?:run|race|walk|video|display|screen|monitor)\b) \p{Ll}{3})
            |(?<!\b[358]) (?P<name>M) (?=\+?(?:[.,;!?]|\Z))
            |(?<!\b(?:[24580]|10|18|24)) (?P<name>[kK]) (?![\p{L}\d@-])
        )
        """, "{number~ to }{number2} {name}", {"10k runners": "ten thousand runners"}),
    Rule("unit", "digit", r"""
        (?<![\p{L}\d.,:/-]) (?P<quantity>\d+(?:,\d{3})*+(?:\.\d+)?[ -]?%units%) \s?/\s? (?P<name>%per%)
        (?![\p{L}\d])
        """, "{quantity} per {name}", {"5 mg/kg/day,": "five milligrams per kilogram per day,"}),
    Rule("unit", "digit", r"""
        (?<![\p{L}\d.,:/-]) (?P<quantity>\d+(?:,\d{3})*+(?:\.\d+)?[ -]?%units%) \s?/\s? (?=\d|\p{Ll}{3})
        """, "{quantity},_",
         {"350°F/180°C": "three hundred and fifty degrees Fahrenheit, one hundred and eighty degrees Celsius"}),
    Rule("ordinal", "digit", r"(?<![\p{L}\d.,]) (?P<cardinal>\d{1,3}) \. (?P<ordinal>\d) (?:st|nd|rd|th) (?![\p{L}\d])",
         "{cardinal} point {ordinal}", {"99.9th": "ninety nine point ninth"}),
    Rule("ordinal", "digit", r"""
        (?<![\p{L}\d.,]) (?P<ordinal>\d{1,3}(?:,\d{3})+|\d{1,12})
        (?:st|nd|rd|th)(?:\s?[-–—]\s? (?P<ordinal2>\d{1,3}) (?:st|nd|rd|th))? (?![\p{L}\d])
        (?!\ (?:of\ )?(?i:%months%)\b)
        """, "{ordinal}{ to ~ordinal2}", {"1st": "first"}),
    Rule("emergency", "digit", r"""
        (?<![\d.,:/$€£¥₹#@_\p{L}-]) (?P<digits>911|999|112) (?<=(?i:call|dial|phone|emergency)[^.]{0,50})
        (?![\d%]|[.,:]\d|\s\p{Ll})
        """, "{digits}", {"Call 911.": "Call nine one one."}),
    Rule("address", "digit", r"""
        (?<![\p{L}\d.,:$-]) (?P<pairs>\d{1,5}) (?P<word>[A-Z])?
        (?=
            \ (?:(?:[NSEW]\.?|North|South|East|West)\ )?(?:(?:\p{Lu}\p{L}+\.?|\d+(?:st|nd|rd|th))\ ){1,3}
            (?:
                St|Street|Ave|Avenue|Rd|Road|Blvd|Boulevard|Ln|Lane|Dr|Drive|Way|Court|Ct|Place|Pl|Square|Sq|Hwy
                |Highway|Terrace
            )
            \b
        )
        """, "{pairs} {word}", {"221B Baker St.": "two twenty one B Baker Street."}),
    Rule("ZIP code", "digit", r"""
        (?<=(?<!\p{L}) [A-Z]{2},?\ |(?i:zip(?:\ code)?):?\ ) (?P<digits>\d{5}(?:-\d{4})?) (?!\d|[.,]\d)
        """, "{digits}", {"DC 20500": "DC two zero five zero zero"}),
    Rule("ISBN", "digit", r"""
        (?<=(?:ISBN|ISSN)(?:-1[03])?:?\ ?) (?P<digits>\d[\d -]{6,15}[\dX]) (?!\d)
        """, "{digits}",
         {"ISBN 978-3-16-148410-0": "ISBN nine seven eight, three, one six, one four eight four one zero, zero"}),
    Rule("plural", "digit", r"(?<=\p{Lu}|\p{L}-|\dx) (?P<d>\d{1,3}) ['’]?s (?!\p{L})",
         decade, {"2x4s": "two by fours"}),
    Rule("year", "digit", r"(?<![\d.,:/$-]) (?P<year>(?:19|20)\d\d) / (?P<short>\d\d) (?![\d/]|[.,]\d)",
         "{year} {short}", {"2023/24": "twenty twenty three twenty four"}),
    Rule("year", "digit", r"(?<=(?<!\w) ['’]|Q[1-4]['’ ]?) (?P<short>0\d) (?!\d|s\b)", "{short}", {"'05": "'oh five"}),
    Rule("feet", "digit", r"""
        (?<![\d.,]) (?P<count>\d{1,2}) (?:['′’]|\s?ft\.?)\s? (?P<number>\d{1,2})
        (?:[\"″”]|''|\s?in\b\.?|(?![\d/½]|[.,]\d|\s?°|\s?\p{Ll}) (?<=\dft\.?\d+))
        """, "{count:foot/feet} {number} inches", {"5'11\"": "five feet eleven inches"}),
    Rule("feet", "digit", r"""
        (?<![\d.,]) (?P<count>\d{1,2}) (?:['′’]|\s?ft\.?)\s? (?P<cardinal>\d{1,2}) [ -]?½(?:[\"″”]|\s?in\b\.?)
        """, "{count:foot/feet} {cardinal} and a half inches", {"5'6½\"": "five feet six and a half inches"}),
    Rule("feet", "digit", r"(?<![\d.,]) (?P<count>\d{1,3}) ['′’] (?=\ (?:of|long|tall|wide|deep|high|x)\b)",
         "{count:foot/feet}", {"10' of": "ten feet of"}),
    Rule("minute", "digit", r"""
        (?<=\p{L}\ ) (?P<cardinal>\d{1,3}) (?P<name>\+)? (?P<cardinal2>(?<=\+) \d{1,2})? ['’] (?=[,;.) ]|\Z)
        """, "{cardinal~ }{name~ }{cardinal2~ }minutes", {"at 90+3',": "at ninety plus three minutes,"}),
    Rule("duration", "digit", r"""
        (?<![\d.,:]) (?P<count>\d{1,3}) \s?h(?:rs?)?\s? (?P<count2>[0-5]?\d) (?:\s?m(?:in)?)?
        (?![\p{L}\d]|[.,]\d)
        """, "{count:hour/hours} and {count2:minute/minutes}", {"1h30.": "one hour and thirty minutes."}),
    Rule("duration", "digit", r"(?<![\d.,:]) (?P<count>\d{1,3}) : (?P<count2>[0-5]\d) \ (?:minutes|mins?)\b",
         "{count:minute/minutes} {count2:second/seconds}", {"3:45 minutes.": "three minutes forty five seconds."}),
    Rule("inches", "digit", r"(?<=\d\ ?[x×]\ |\bby\ ) (?P<number>\d+(?:\.\d+)?) \ ?in(?:ch)? (?=[.,;)]|\Z)",
         "{number} inches", {"4 x 6 in.": "four by six inches."}),
    Rule("power", "digit", r"""
        (?<![\p{L}\d.,]) (?P<number>\d(?:\.\d+)?|\d+(?:\.\d+)? (?=[eE][-−])) [eE] (?P<name>[-−])?
        (?P<cardinal>\d{1,3}) (?![\p{L}\d]|\.\d|\ ?%units%)
        """, "{number} times ten to the power of {name~ }{cardinal}",
         {"3.2e8": "three point two times ten to the power of eight"}),
    Rule("year", "digit", r"(?<=[(, ]) (?P<year>(?:19|20)\d\d) (?P<word>[a-d]) (?![\p{L}\d])",
         "{year} {word}", {"(2019a).": "(twenty nineteen a)."}),
    Rule("standard", "digit", r"""
        (?<=\b(?:ISO|IEC|IEEE|EN|DIN|ANSI)(?:[ /][A-Z]+)?\ ) (?P<cardinal>\d{3,5}) : (?P<year>(?:19|20)\d\d)
        (?!\d)
        """, "{cardinal}, {year}", {"ISO 9001:2015.": "ISO nine thousand and one, twenty fifteen."}),
    Rule("lap", "digit", r"(?<![\d.,:]) (?P<cardinal>\d{1,2}) : (?P<short>[0-5]\d) \. (?P<digits>\d{1,3}) (?![\d:])",
         "{cardinal} {short} point {digits}", {"1:23.456.": "one twenty three point four five six."}),
    Rule("verse", "digit", r"""
        (?<=\b(?:%books%)\ ) (?P<cardinal>\d{1,3}) : (?P<cardinal2>\d{1,3}) (?:[-–] (?P<cardinal3>\d{1,3}))?
        """, "{cardinal} {cardinal2}{ to ~cardinal3}", {"Genesis 1:1-3.": "Genesis one one to three."}),
    Rule("identifier", "digit", r"(?<=(?<![\p{L}\d]) [A-Z]{1,3}) (?P<digits>\d{5,}) (?![\d\p{L}]|[.,]\d)",
         "{digits}", {"X1234567": "X one two three four five six seven"}),
    Rule("road", "digit", r"""
        (?<=\b(?:I|US|SR|Route|Rte\.|Hwy\.?|Highway|Exit)[ -]) (?P<pairs>\d{1,3}) \ ? (?P<name>[NSEW])
        (?![\p{L}\d])
        """, "{pairs} {name}", {"I-95 N": "I ninety five north"}),
    Rule("room", "digit", r"""
        (?<=
            \b
            (?i:room|suite|flight|boeing|rtx|gtx|hwy\.?|gate|route|highway|bus|error|status|http|code|box|rfc)
            (?:\ [A-Z]{2})?[ ]
        )
        (?P<pairs>[1-9]\d{2,3}) (?![\d.,:/-]\d|\d)
        """, "{pairs}", {"RTX 3060": "RTX thirty sixty"}),
    Rule("identifier", "digit", r"""
        (?<=(?<!\p{L}) (?:[A-Z]{1,2}|[A-Z]{1,4}-|i[3579]-)) (?P<pairs>[1-9]\d{2,3}) (?![\p{Ll}\d]|[.,-]\d)
        """, "{pairs}", {"A380": "A three eighty"}),
    Rule("identifier", "digit", r"""
        (?<=
            \b
            (?i:
                code|id|pin|otp|end(?:s|ing)\ in|last\ four(?:\ digits)?|passcode|password|account|order|invoice
                |confirmation|tracking|sku|(?:part|case|serial|ticket) (?=\ n)
            )
            (?:\ is|\ no\.?|:|\ number|:?\ ?\#:?)*:?\ ?
        )
        (?P<digits>(?:\d\d[ -])?\d{3,}(?:[ -]\d{3,})*) (?![\d.,:/-]\d|\p{L})
        """, "{digits}", {"code is 4021": "code is four zero two one"}),
    Rule("identifier", "digit letter", r"""
        (?<![\p{L}\p{N}_/.-]) (?!C\d*H\d)
        (?P<digits>
            (?=[A-Z\d]{6,30} (?![\p{L}\p{N}_])) (?:\d+[A-Z]+\d|[A-Z]+\d+[A-Z]+\d|[A-Z]+\d+[A-Z]+ (?=\b))[A-Z\d]*
        )
        """, "{digits}",
         {"1Z999AA10123456784.": "one Z nine nine nine AA one zero one two three four five six seven eight four."}),
    Rule("score", "digit", r"(?<=\p{L}\ ) (?P<cardinal>\d{1,2}) \ [-–]\ (?P<cardinal2>\d{1,2}) (?=\ \p{Lu}\p{L})",
         "{cardinal} to {cardinal2}", {"Utd 1 - 1 Liverpool,": "Utd one to one Liverpool,"}),
    Rule("resolution", "digit", r"(?<![\p{L}\d.,]) (?P<pairs>480|720|1080|1440|2160|4320) (?P<word>p|i) (?![\p{L}])",
         "{pairs} {word}", {"480p.": "four eighty p."}),
    Rule("phone", "digit", r"(?<![\p{L}\d.,$/-]) (?P<phone>\d{3}-\d{4}) (?![\d-]|[.,]\d)",
         "{phone}", {"555-0147.": "five five five, zero one four seven."}),
    Rule("age", "digit", r"(?<![\p{L}\d.,]) (?P<cardinal>\d{1,3}) [- ]?y/?o\b",
         "{cardinal} year old", {"35 y/o": "thirty five year old"}),
    Rule("aircraft", "digit", r"""
        (?<![\p{L}\d.,-]) (?P<pairs>7\d7) (?:- (?P<pairs2>[1-9]\d{0,2}0?)|(?=\ ?MAX)) (?P<word>ER|LR|\ ?MAX)?
        (?![\d\p{Ll}]|[.,]\d)
        """, "{pairs} {pairs2} {word}", {"737 MAX": "seven thirty seven MAX"}),
    Rule("plan", "digit", r"(?<![\p{L}\d.,]) (?P<pairs>40[13]|50[13]) \( (?P<word>[bck]) \)",
         "{pairs} {word}", {"401(k)": "four oh one k"}),
    Rule("out of", "digit", r"""
        (?<![\p{L}\d.,/]) (?P<number>\d+\.\d+) / (?P<number2>\d{1,3}(?:\.\d)?) (?![\d/\p{L}%]|[.,]\d)
        """, "{number} out of {number2}", {"4.5/5": "four point five out of five"}),
    Rule("degree", "digit", r"""
        (?<![\d.]) (?P<count>\d{1,3}) °\s? (?P<count2>\d{1,2}) ['′](?:\s? (?P<count3>\d{1,2}(?:\.\d+)?) ["″])?
        """, "{count:degree/degrees} {count2:minute/minutes}{ ~count3:second/seconds}",
         {"40°26′46″N": "forty degrees twenty six minutes forty six seconds north"}),
    Rule("odds", "digit", r"(?<=\bodds[^.\d]{0,20}\ ) (?P<cardinal>\d{1,3}) / (?P<cardinal2>\d{1,3}) (?![\d/])",
         "{cardinal} to {cardinal2}", {"odds are 5/1.": "odds are five to one."}),
    Rule("times", "digit", r"""
        (?<![\p{L}\d.,]) (?:(?P<number>\d+(?:\.\d+)?) [-–])? (?P<number2>\d+(?:\.\d+)?) [x×]
        (?=\s\p{Ll}|[.,;!?)]|\Z|\sUSB)
        """, "{number~ to }{number2} times", {"3x": "three times"}),
)
# fmt: on
