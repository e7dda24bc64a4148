"""English rules for what begins with a letter or a sign, in the order in which they are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vivavoce_textnorm.grammar import Match
from vivavoce_textnorm.rules import Rule

if TYPE_CHECKING:
    from vivavoce_textnorm.english import English


def street(voice: English, found: Match) -> str:
    """St. is a street behind a name, else a saint; Dr. a drive behind one unless a name follows it."""
    named, before = found["name"] is not None, found["before"] is not None
    if found["short"] == "St":
        said = "Street" if before else "Saint"
    else:
        said = "Drive" if before and not named else "Doctor"
    return said + ("" if found.string[found.end() :].strip() else ".")


# fmt: off
RULES = (
    Rule("street", "letter", r"""
        (?P<before>(?<=\p{Lu}\p{L}+\ |\d(?:st|nd|rd|th)\ ))? (?<![\p{L}.]) (?P<short>St|Dr) \. (?![\p{L}\d])
        (?P<name>(?=\ \p{Lu}))?
        """, street, {"Dr. Smith": "Doctor Smith"}),
    Rule("dates", "letter", r"""
        (?<!\p{L}) (?P<name>%months%) \.?\ (?P<ordinal>[0-3]?\d) (?:st|nd|rd|th)?\s?[-–—]\s?
        (?P<ordinal2>[0-3]?\d) (?:st|nd|rd|th)? (?![\d:\p{L}]|[.,]\d)
        """, "{name} {ordinal} to {ordinal2}", {"March 3-5.": "March third to fifth."}),
    Rule("identifier", "letter", r"""
        (?<![\p{L}\d-]) (?P<word>[A-Z]{2,6}) - (?P<year>(?:19|20)\d\d) - (?P<digits>\d{2,}) (?![\p{L}\d]|-\d)
        """, "{word} {year} {digits}", {"CVE-2024-12345": "CVE twenty twenty four one two three four five"}),
    Rule("weekdays", "letter", r"(?<![\p{L}\d]) M\s?[-–]\s?F (?=,?\ \d)",
         "Monday to Friday", {"M-F, 9-5.": "Monday to Friday, nine to five."}),
    Rule("weekdays", "letter", r"""
        (?<!\p{L}) (?P<name>%days%) \.?(?:\s?[-–]\s?) (?P<name2>%days%) (?!\p{L}) (?:\. (?=,|\s[\d\p{Ll}]))?
        """, "{name} to {name2}", {"Mon-Fri": "Monday to Friday"}),
    Rule("weekdays", "letter", r"(?<!\p{L}) (?P<name>%days%) (?<!day) (?:\.?/ (?P<name2>%days%))\.?",
         "{name} {name2}", {"Mon/Wed": "Monday Wednesday"}),
    Rule("weekdays", "letter", r"""
        (?<!\p{L}) (?P<name>%days%) (?<!day)
        (?:
            (?<!Sun) \. (?=\S|\s\S)
            |(?<=(?:&|\b(?:on|by|until|till|to|this|next|last|every|and|a))\ \w+) \. (?=\s*\Z)
            |\. (?=,|\s[\d\p{Ll}])
            |(?=
                ,?[ ]
                (?:
                    \d\d?(?:/|:\d\d|\ ?[ap]\.?m)|\d\d?\ ?(?i:%months%)
                    |(?i:%months%|night|morning|evening|afternoon)\b
                )
            )
        )
        """, "{name}", {"Mon, Jan": "Monday, Jan"}),
    Rule("sentence", "letter", r"(?<=\b(?:is|was|be|said|says|say|answered|answer)\ ) no\. (?=\s\d+\ \p{Ll})",
         "no.", {"is no. 5 people": "is no. five people"}),
    Rule("sentence", "letter", r"""
        (?<!\p{L}) (?P<name>(?:etc|Inc|Ltd|Co|Corp|Bros|Jr|Sr|Ave|Blvd|Rd|U\.S|U\.K)\.)
        (?=
            \s
            (?:He|She|It|They|We|I|You|The|An?|This|That|These|There|But|And|In|On|At|My|His|Her|Our|If|When|So)
            \b
        )
        """, "{name}.", {"etc. He": "et cetera. He"}),
    Rule("street", "letter", r"""
        (?<=\d(?:\d|st|nd|rd|th|[A-Z]?\ [\p{L}\d .]{2,40})\ ) (?P<name>St|Ave|Rd|Blvd|Dr|Ln|Pl|Ct|Hwy|Pkwy)
        (?=,|\s[NSEW]|\s*(?:\Z|\n))
        """, "{name}", {"42nd St,": "forty second Street,"}),
    Rule("direction", "letter", r"""
        (?<=\b(?:St|Ave|Rd|Blvd|Dr|Ln|Street|Avenue|Road|I-\d+|\p{Lu}\p{L}+)\.?\ ) (?P<name>NW|NE|SW|SE)
        (?=[,.]|\s(?:\d|\p{Lu}\p{Ll})|\s*\Z)
        """, "{name}", {"Ave. NW,": "Avenue northwest,"}),
    Rule("numbered", "letter", r"""
        (?<!\p{L})
        (?!
            P\.|PP
            |(?<=\b(?:the|an?|my|your|his|her|our|this|that|of|very|so|for|is|was)\ )
            (?:art|long|pop|temp|sec|fig|max|lat)\.
        )
        (?P<name>(?i:%numbered%)|Apt)
        (?=:?\s?(?:[\d~]|[IVX]{2,}\b|[A-Z]{1,3}-?\d|[A-Z] (?=[,.;)]|\s*\Z))|(?<=(?i:temp|max|avg)\.) \ \p{Ll})
        """, "{name}", {"No. 5": "number five"}),
    Rule("edition", "letter", r"(?<!\p{L}) ed\. (?!\p{L})", "edition", {"ed.,": "edition,"}),
    Rule("mention", "sign", r"(?<=\bat\ ) @ (?=\p{L})", "", {"I was at @MSGNetwork.": "I was at MSGNetwork."}),
    Rule("copyright", "sign", r"(?<=(?i:copyright)\ ) ©\ ?", "", {"Copyright © 2023": "Copyright twenty twenty three"}),
    Rule("circa", "letter", r"(?<=(?:\A|[ (])) ca?\.\ ? (?=\d{3,4})", "circa", {"ca. 1450.": "circa fourteen fifty."}),
    Rule("life", "letter", r"(?<=[( ]) (?P<name>(?:b|d|r|fl)\.) \ ? (?=(?:ca?\.\ ?)?\d{3,4} (?!\d))",
         "{name}_", {"was b. 1452": "was born fourteen fifty two"}),
    Rule("century", "letter", r"(?<=\d(?:st|nd|rd|th|ty|eenth|elfth|\p{L}th)\ ) c\. (?=[ ,.)])",
         "century", {"19th c. chair,": "nineteenth century chair,"}),
    Rule("established", "letter", r"(?<!\p{L}) [Ee]st\.\ (?=\d{4})",
         "established", {"est. 1921,": "established nineteen twenty one,"}),
    Rule("estimated", "letter", r"(?<!\p{L}) est\. (?=\ \$|\ \d|\))",
         "estimated", {"est. $500.": "estimated five hundred dollars."}),
    Rule("war", "letter", r"(?<!\p{L}) WW-? (?P<cardinal>[12]) (?![\p{L}\d])",
         "World War {cardinal}", {"WW2": "World War two"}),
    Rule("roman", "letter", r"(?<=(?i:scene|act|chapter|page|part)\ ) (?P<roman>[ivx]+) (?![\p{L}\p{N}'’])",
         "{roman}", {"scene ii": "scene two"}),
    Rule("roman", "letter", r"(?<=(?:\A|\n)) (?P<roman>(?!I\.) [IVX]{2,5}) (?=[.)]\ \p{Lu})",
         "{roman}", {"II. Methods": "two. Methods"}),
    Rule("direction", "letter", r"""
        (?<=
            (?:°|°\d\d?['′](?:[\d.]+["″])?)\ ?|\b(?i:winds?:?(?:\ (?:is|are|from(?:\ the)?))?|heading|bearing)[ ]
        )
        (?P<name>[NSEW]{1,3}) (?![\p{L}\d])
        """, "{name}", {"Wind SSW": "Wind south southwest"}),
    Rule("direction", "letter", r"""
        (?<!\p{L}) (?P<name>[NSEW])
        (?:
            \. (?=\ (?:coast|side))
            |\.? (?=\ \d+(?:st|nd|rd|th)\ |(?<=\d\ [NSEW]\.?) \ \p{Lu}\p{L}+\ (?:St|Ave|Rd|Blvd|Dr|Ln)\b)
        )
        """, "{name}", {"W 42nd St,": "west forty second Street,"}),
    Rule("street", "letter", r"(?<=\p{L}\ ) st\. (?=\ (?:in|and|of|near|at)\b|,)",
         "street", {"main st. in": "main street in"}),
    Rule("standard", "letter", r"(?<!\p{L}) (?P<word>\p{Lu}) \. (?P<pairs>\d{3}) (?!\d)",
         "{word} {pairs}", {"H.264.": "H two sixty four."}),
    Rule("extension", "letter", r"(?<=\d{3}[-. ]\d{4},?\ ?) x (?=\ ?\d)",
         "extension_", {"555-0100 x123": "five five five, zero one zero zero extension one hundred and twenty three"}),
    Rule("by", "letter", r"""
        (?<=\d[\"”″]?\ ?(?:(?:ft|in|[ckm]?m|yd)\.?\ )?) x (?=\ ?\d)
        """, "by", {"12 ft x 14": "twelve feet by fourteen"}),
    Rule("isotope", "sign", r"(?<![\p{L}\d]) \^ (?P<cardinal>\d+) (?=\p{Lu})",
         "{cardinal}", {"dated by ^14C": "dated by fourteen C"}),
    Rule("minus", "sign", r"""
        (?<=UTC|GMT) [-−–] (?=\d)
        | (?<![^\s(]) – (?=\d+(?:\.\d+)?(?:\ ?[°º%]|\ bps))
        """, "minus", {"–5 °C.": "minus five degrees Celsius."}),
    Rule("floor", "letter", r"(?<=\d(?:st|nd|rd|th)\ ) Fl\.", "Floor", {"2nd Fl.": "second Floor."}),
    Rule("scale", "letter", r"(?<=\d\ degrees?\ ) (?P<name>[FC]) (?![\p{L}\d])",
         "{name}", {"200 degrees F": "two hundred degrees Fahrenheit"}),
    Rule("grade", "sign", r"(?<=\b(?:an?|grade|of)\ [A-F]) - (?![\p{L}\d])", " minus", {"a B-": "a B minus"}),
    Rule("number", "sign", r"\# (?P<digits>\d+(?:-\d+)+) (?![\p{L}\d])",
         "number {digits}", {"order #114-2271": "order number one one four, two two seven one"}),
    Rule("key", "sign", r"""
        \#
        (?=
            \ key\b
            |(?<=\b(?:[Pp]ress|or|and|then|[Dd]ial|hit)\ \#) (?:[.,;!?]|\s*\Z|\ (?:to|for|when|after|now)\b)
        )
        """, "hash", {"or #": "or hash"}),
    Rule("key", "sign", r"""
        \*
        (?=
            \ key\b|(?<=\b(?:[Pp]ress|or|and|[Dd]ial|hit)\ \*) (?:\d|[.,;!?]|\s*\Z|\ to\b)
            |(?<=SELECT\ \*) \ FROM
        )
        """, "star", {"Dial *67": "Dial star sixty seven"}),
    Rule("menu", "sign", r"(?<=\p{L}{2}\ ) > (?=\ \p{Lu}\p{Ll})",
         "then", {"Privacy > Location": "Privacy then Location"}),
    Rule("sign", "sign", r"(?<=\b(?:is|was|are)|['’]s\ ) ≈", "approximately", {"it's ≈": "it's approximately"}),
    Rule("heart", "sign", r"(?<=\p{L}{2}\ |[!.?)]\ |\d\p{L}\ ) <3+ (?=\s*(?:\Z|\n))", "", {"you <3": "you"}),
    Rule("over", "sign", r"""
        (?<=π) / (?=\d)
        | (?<=(?<!\S) \d) / (?=[a-z] (?!\p{L}))
        """, " over", {"1/n": "one over n"}),
    Rule("factorial", "sign", r"(?<=\d) ! (?=\ [=+/])", " factorial", {"5! =": "five factorial equals"}),
    Rule("minus", "sign", r"(?<=(?<![\p{L}\p{N}]) \d+\p{Latin}\ ) - (?=\ [\p{Latin}\p{N}] (?!\p{L}))",
         "minus", {"2x - y": "two x minus y"}),
    Rule("per", "sign", r"""
        (?<=
            [\d¢%]|/kg|\d\ \p{Ll}{3,12}|million|billion|thousand|trillion|\d[kKMB]|CO2|cells|dollars|euros
            |pounds|cents
        )
        / (?P<name>%per%) (?![\p{L}\d]) (?:\. (?=,|\ [\p{Ll}\d]))?
        """, " per {name}", {"$15/hr.": "fifteen dollars per hour."}),
)
# fmt: on
