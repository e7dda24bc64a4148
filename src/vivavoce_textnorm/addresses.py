"""Reading rules for internet addresses, file names, hashtags, acronyms, Roman numerals and symbols."""

from __future__ import annotations

from unicodedata import normalize

import regex

from vivavoce_textnorm.grammar import CJK, START, compiled, roman_value
from vivavoce_textnorm.semiotic_classes import Cursor, Found, in_formula

_ENDINGS = (
    "com org net edu gov io ai dev app co uk de fr it es ru cn jp kr eu us ca au info tv me ly be ch at nl py js ts txt"
    " md pdf docx? xlsx? pptx? csv json ya?ml toml html? xml png jpe?g gif svg mp3 mp4 wav flac zip gz tar exe sh cpp"
    " java log ini cfg conf hk tw"
)
_BODY = r"[^\s<>\"“”'’`\p{Han}\p{Hiragana}\p{Katakana}，。；：！？、（）【】《》]"
_END = r"(?<![.,;:!?)\]*_])"
_URL = compiled(
    rf"(?:(?:https?|ftp|wss?)://{_BODY}{{1,2000}}{_END}|(?:www\.){_BODY}{{2,2000}}{_END}"
    rf"|(?:[a-z\d_-]{{1,63}}\.){{1,8}}(?:{'|'.join(_ENDINGS.split())})(?:(?::\d+)?/(?:{_BODY}{{1,2000}}{_END})?|(?![a-z\d_@])))",
    regex.I,
)
_EMAIL = compiled(r"[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}", regex.ASCII)
_IP = compiled(
    rf"{START}(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){{3}}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d]|\.\d)(?P<more>(?:/\d\d?|:\d{{2,5}})?)"
)
_HEX = r"[\da-fA-F]{1,4}"
_IP6 = compiled(
    rf"(?<![[\w]--[{CJK}]]|:)(?:(?:{_HEX}:){{7}}{_HEX}|(?:{_HEX}(?::{_HEX}){{0,6}})?::(?:{_HEX}(?::{_HEX}){{0,6}})?"
    rf"|(?:[\da-fA-F]{{2}}[:-]){{5}}[\da-fA-F]{{2}}"
    rf"|(?=[a-fA-F:]*\d)(?=[\d:]*[a-fA-F])(?:[\da-fA-F]{{2}}:){{2,4}}[\da-fA-F]{{2}}"
    rf"|(?<=(?:MAC|IP|设备|設備|地址)[是为：: ]*(?:[\da-fA-F]{{2}}:[\da-fA-F]{{2}}[和、])*)"
    rf"(?:\d[a-fA-F]:[\da-fA-F]{{2}}|\d\d:(?:\d[a-fA-F]|[a-fA-F]\d)))(?![[\w]--[{CJK}]]|:|\.\w)"
)
_FILE = r"[^\s\\:*?\"<>|，。、；]"
_PATH = compiled(
    rf"(?:[A-Za-z]:\\(?:{_FILE}{{1,255}}\\){{0,30}}(?:{_FILE}{{1,255}}\.\w{{1,5}}\b|[{_FILE}--\p{{Han}}]{{1,255}})?|(?<![A-Za-z\d_/.<)])(?:~|\.{{1,2}})?/(?:[A-Za-z\d_.@+-]{{1,255}}/){{0,30}}[A-Za-z\d_.@+-]{{1,255}}/?(?:\?[\w=&%.-]{{1,500}})?){_END}(?!\p{{Latin}})"
)
_NAME = compiled(r"0x[\da-fA-F]{2,}\b|[\w-]{0,100}[A-Za-z0-9]_[\w-]*(?:(?:\(\d+\))?\.\w{1,8})?(?:\(\))?", regex.ASCII)
_TAGGED = compiled(r"(?P<sign>[#@])(?P<name>\d{0,4}\p{L}[\p{L}\p{M}\p{N}_]{0,100})(?:#(?![\p{Latin}\p{N}#]))?")
_LEAD = compiled(r"([1-9]\d{0,2}(?!\d))?(.*)", regex.S)
_COUNTED = compiled(
    r"#\s?(?:(?P<n>\d{1,4})(?![[\p{L}--[\p{Hiragana}号號楼樓番에은는이가을를의로과와번]]\d]|-\d)|(?=(?:\p{Lu}{1,4}-|\p{Lu}(?=\d{3}))?\d++(?:-(?:\d+|\p{Lu}{1,3}(?!\p{L})))*+(?!-?\p{L})))"
)
_KEY_CODE = compiled(
    rf"(?<![[\w*#]--[{CJK}]])[*#]{{1,3}}\d+(?:[*#]+\d+)*(?:#|(?<=[*#]\d+[*#]+\d+))(?![[\w*#]--[{CJK}\p{{Hangul}}]])"
)
_DOTTED = compiled(r"(?:\p{Lu}\.){2,}(?:\p{Lu}(?![\p{L}]))?")
_COUNTRIES = ("U.S.", "U.K.", "U.N.", "E.U.", "D.C.", "L.A.")
_ROMAN = compiled(
    r"(?<![\p{L}\p{N}])(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
    r"(?![\p{Latin}\p{N}&/.]\w|(?<![IVX]{2})['’]\w|[\p{Latin}\p{N}&])"
)
_BEFORE_ROMAN = compiled(r"(\p{L}+)\.?[ \u00a0]\Z")
_SECTION = compiled(r"[.)] \p{Lu}")
_SIGNIFICANT = compiled(r"[Ⅰ-Ⅿⅰ-ⅿ]+")
_PARTS = compiled(r"\p{L}\p{M}*+(?:[\p{L}\p{M}'’])*|\d+|\s+|.", regex.S)
_SILENT = compiled(r"(?:[_|\\*^~`{}\[\]<>$※■●◆★☆▲△]+|//+|#+(?![\p{L}\p{N}#]))(?P<blanks> *)")
_HYPHEN = compiled(r"(?<=[\p{Latin}\p{Cyrillic}])-(?=\d)|(?<=\d)-(?=\p{Lu})")
_BETWEEN_NAMES = compiled(r"(?<=(?<![\p{L}\p{N}])\p{Latin} )-(?= [\p{Latin}\p{N}](?!\p{L}))")
_COMPARED = compiled(r"[-−+]?[$€£¥√]?\.?\d")
_OPERAND = compiled(r"(?:[\d)²³]|(?<!\p{L})\p{L}) ?\Z")


def spell_address(place: Cursor, written: str) -> str:
    voice, signs = place.voice, place.locale.signs
    said: list[str] = []
    for part in _PARTS.findall(written):
        if part.isdecimal() and len(part) == 4 and part[:2] in ("19", "20"):
            said.append(voice.cardinal(int(part)) if "plain_years" in place.locale.words else voice.year(int(part)))
        elif part.isdecimal():
            short = len(part) < 3 and part[0] != "0"
            said.append(voice.cardinal(int(part)) if short else voice.digits(part))
        else:
            said.append(signs.get(f"address {part}") or signs.get(part) or ("" if part.isspace() else part))
    return _join_latin(said, place.locale.joint)


def _join_latin(words: list[str], joint: str) -> str:
    if joint:
        return joint.join(filter(None, words))
    said = ""
    for word in filter(None, words):
        said += " " + word if said and said[-1].isascii() and said[-1].isalnum() and word[0].isascii() else word
    return said


def read_address(place: Cursor) -> Found:
    """Read a URL, an e-mail address, a path, a file name, an identifier of a program or an IP address."""
    for pattern, rule in ((_EMAIL, "email"), (_URL, "url"), (_PATH, "path"), (_NAME, "identifier")):
        if found := place.match(pattern):
            written = " ".join(found[0]) if found[0][:2] == "0x" else found[0].rstrip("()").split("://", 1)[-1]
            return found.end(), spell_address(place, written), rule
    return read_ip(place)


def read_ip(place: Cursor) -> Found:
    """Read an IP address such as 192.168.0.1:8080 or ::1, or a MAC address such as 00:1A:2B:3C:4D:5E."""
    if found := place.match(_IP):
        voice, signs = place.voice, place.locale.signs
        host = found[0].removesuffix(found["more"]).split(".")
        parts = (voice.digits(one) if len(one) > 2 else voice.cardinal(int(one)) for one in host)
        said = [word for part in parts for word in (signs["address ."], part)][1:]
        return found.end(), voice.join(*said, spell_address(place, found["more"])), "ip"
    if (found := place.match(_IP6)) and len(found[0]) > 2:
        return found.end(), spell_address(place, " ".join(found[0])), "ip"
    return None


def read_tagged(place: Cursor) -> Found:
    """Read a hashtag (#CosyVoice2), a user name (@vivavoce) or a number behind # (#1)."""
    voice = place.voice
    if found := place.match(_COUNTED):
        number = place.locale.words.get("number", "")
        return found.end(), voice.join(number, voice.cardinal(int(found["n"])) if found["n"] else ""), "number"
    found = place.match(_TAGGED)
    if not found or (place.at and place.text[place.at - 1].isalnum() and place.text[place.at - 1].isascii()):
        return None
    name = place.locale.words.get("hashtag", "") if found["sign"] == "#" else place.locale.signs.get("@", "")
    name = "" if place.before().rstrip().endswith(name) else name
    lead, name_rest = _LEAD.fullmatch(found["name"].replace("_", " ")).groups()
    said = _join_latin([voice.cardinal(int(lead)) if lead else "", spell_address(place, name_rest)], place.locale.joint)
    return found.end(), _join_latin([name, said], place.locale.joint), "tagged"


def read_key_code(place: Cursor) -> Found:
    """Read a code that is typed on a telephone, such as *#06#, *67# or #31#5551234."""
    if not (found := place.match(_KEY_CODE)):
        return None
    voice, words = place.voice, place.locale.words
    keys = {"*": words["key_star"], "#": words["key_hash"]}
    said = (keys.get(one) or voice.one_by_one(one, phone=True) for one in compiled(r"\d+|.").findall(found[0]))
    return found.end(), voice.join(*said), "key"


def read_acronym(place: Cursor) -> Found:
    """Read an acronym such as U.S.A. without its full stops, except a full stop that also ends the sentence."""
    if not (found := place.match(_DOTTED)):
        return None
    name = place.text[found.end() : found.end() + 1] == " " and place.after(found.end())[:1].isupper()
    if name and len(found[0]) == 4 and found[0] not in _COUNTRIES:
        return None  # the initials of a name, as in J. K.
    rest = place.after(found.end())
    ends = found[0][-1] == "." and (not rest or "\n" in place.text[found.end() : found.end() + 2])
    return found.end() - ends, found[0].replace(".", ""), "acronym"


def read_roman(place: Cursor) -> Found:
    """Read a Roman numeral: Louis XIV, Chapter IV, Ⅲ."""
    voice, words = place.voice, place.locale.words
    if sign := place.match(_SIGNIFICANT):
        return sign.end(), voice.cardinal(roman_value(normalize("NFKC", sign[0]).upper())), "roman"
    found = place.match(_ROMAN)
    before = _BEFORE_ROMAN.search(place.text, max(0, place.at - 30), place.at) if found and found[0] else None
    if not found or not before:
        return None
    word, value = before[1].lower(), roman_value(found[0])
    after = place.text[found.end() : found.end() + 3]
    alone = found[0] == "I" and after[:1] == " " and after != " of"
    numbered = words.get("counted_in_roman", "").split("|")
    if word in numbered or word.removesuffix("s") in numbered:
        pronoun = alone and before[1].islower() and after[1:2].islower()
        return None if pronoun else (found.end(), voice.cardinal(value), "roman")
    name = before[1][0].isupper() and not before[1].isupper()
    short = len(found[0]) == 1 or "L" in found[0] or "C" in found[0]
    if not name or (short and word not in words.get("kings", "").split("|")):
        return None
    if alone:
        return None
    if word not in words.get("kings", "").split("|") and _SECTION.match(place.text, found.end()):
        return found.end(), voice.cardinal(value), "roman"
    return found.end(), voice.reign(value), "roman"


def read_sign(place: Cursor) -> Found:
    """Read a symbol as its name, or as silence if the symbol only separates words."""
    names, behind = place.locale.signs, (place.text, max(0, place.at - 4), place.at)
    for length in (3, 2, 1):
        sign = place.text[place.at : min(place.at + length, place.end)]
        if len(sign) == length and sign in names and _is_said(place, sign):
            lone = "" if _OPERAND.search(*behind) else names.get(f"lone {sign}")
            divides = sign == "/" and "÷" in names and in_formula(place, place.at + 1)
            return place.at + length, lone or names["÷" if divides else sign], "sign"
    if found := place.match(_HYPHEN):
        return found.end(), names["-"] if _OPERAND.search(*behind) and in_formula(place, found.end()) else " ", "hyphen"
    if found := place.match(_SILENT):
        before, after = place.text[place.at - 1 : place.at], place.text[found.end() : found.end() + 1]
        if not before.strip():
            return found.end(), "", "silent"
        return found.start("blanks"), "" if found["blanks"] or after in ("", *".,;:!?)。，") else " ", "silent"
    return None


def _is_said(place: Cursor, sign: str) -> bool:
    before, after = place.text[place.at - 1 : place.at] if place.at else "", place.after(place.at + len(sign))
    following = place.text[place.at + len(sign) : place.at + len(sign) + 1]
    if sign in ("<", ">") and before.isspace() != following.isspace() and not _COMPARED.match(place.text, place.at + 1):
        return False  # a bracket of a tag such as <name>
    if sign == "*" and bool(before.strip()) != bool(following.strip()):
        return False  # an emphasis mark, as in *this*
    if sign == "$" and (before.strip() or following.isalpha() or following in ("$", "\\")):
        return False  # the sign of a TeX formula
    if sign in "*/<>" and len(sign) == 1:
        return (
            bool(after)
            and (before.isalnum() or before in " )，、；：（(")
            and (after[0].isalnum() or after[0] in "(-−+.$€£¥√")
        )
    if sign == "^":
        return before.isalnum() or before in (")", "]", "}")
    if sign == "~":
        return bool(place.grammar.amount.match(after)) and not before.isalnum()
    if sign == "-":
        taken = before == following == " " and in_formula(place, place.at + 1)  # minus in 2x - 3 = 7
        return taken or bool(_BETWEEN_NAMES.match(place.text, place.at))
    if sign in ".:?!,;%'\"()":
        return sign == "%"
    return sign != "#"
