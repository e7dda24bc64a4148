"""Turns Markdown and HTML into the plain text that is read, and removes emojis and invisible characters."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import regex

from vivavoce_textnorm.grammar import CJK, Match, any_of, compiled
from vivavoce_textnorm.types import Piece, Settings

_HTML = (
    "a|abbr|address|article|aside|audio|b|big|blockquote|body|br|button|caption|center|cite|code|col|del|desc|details|dd|div|"
    "dl|dt|em|emphasis|fieldset|figcaption|figure|font|footer|form|h[1-6r]|head|header|html|i|iframe|img|input|ins|kbd|label|"
    "lang|laughter|legend|li|link|main|mark|meta|nav|ol|optgroup|option|p|phoneme|pre|prosody|q|s|samp|say-as|script|section|select|small|span|speak|strike|"
    "strong|style|sub|summary|sup|svg|table|tbody|td|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var|video|voice|break"
)
# An opening tag of one letter, whose attributes have no values and which is never closed, is a comparison: a<b and c>d.
_COMPARED = (
    r"<(?P<one>[a-zA-Z])\s+(?!hidden|inert|download|item)[^<>=]*>"
    r"(?!(?:(?!<(?P=one)\b)[\s\S]){0,2000}?</(?P=one)\s*>)"
)
_PAUSING = compiled(
    r"(?i:address|article|aside|blockquote|br|caption|center|d[dt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6r]|"
    r"header|legend|li|main|nav|optgroup|option|p|pre|section|summary|table|t[dhr]|title)"
)
_APART = compiled(r"(?i:button|input|label|select|textarea)")
"""Elements within a line that a space separates from the words beside them."""
_ATTRIBUTES = r"(?:\s(?>=\s*\"[^\"<]{0,500}\"|=\s*'[^'<]{0,500}'|[^<>]){0,1000}+)?"
# Pairs of regional indicator letters that are flags; other regional letters are read as letters.
_FLAGS = (
    "A[C-GILMOQ-UWXZ]|B[ABD-JL-OQ-TVWYZ]|C[ACDF-IK-RU-Z]|D[EGJKMOZ]|E[ACEGHR-U]|F[IJKMOR]|G[ABD-ILMNP-UWY]|H[KMNRTU]|"
    "I[CDEL-OQ-T]|J[EMOP]|K[EGHIMNPRWYZ]|L[ABCIKR-VY]|M[AC-HK-Z]|N[ACEFGILOPRUZ]|OM|P[AEFGHK-NR-TWY]|QA|R[EOSUW]|"
    "S[A-EG-ORSTVXYZ]|T[ACDF-HJ-ORTVWZ]|U[AGKMNSYZ]|V[ACEGINU]|W[FS]|XK|Y[ET]|Z[AMW]"
).translate({ord("A") + at: chr(0x1F1E6 + at) for at in range(26)})
_EMOJI = (
    rf"(?:[🇦-🇿]{{2}}(?<=(?<![🇦-🇿])(?:{_FLAGS}){{1,99}})(?=(?:{_FLAGS}){{0,99}}(?![🇦-🇿]))|[#*]\uFE0F?\u20E3"
    r"|(?:(?=[\p{Extended_Pictographic}--[©®™‼⁉ℹ↔-↪〰㊗㊙🅰🅱🅾🅿]])\p{Extended_Pictographic}|[↔-↪©®™‼⁉](?=\uFE0F))"
    r"[\p{Emoji_Modifier}\uFE0F\U000E0020-\U000E007F]*"
    r"(?:\u200D\p{Extended_Pictographic}[\p{Emoji_Modifier}\uFE0F]*)*)"
)
STYLED = (
    "＂-＇＊＋－-９＜-＞＠-｝｡-ﾟ￠￡￦ₐ-ₜᵢ-ᵪⱼ₀-₉ʰ-ʸˡ-ˣᴬ-ᵡᶛ-ᶿⱽⁱⁿſĲĳŉǄ-ǌǱ-ǳﬀ-ﬆﬓ-ﬗℂℊ-ℒℕℙ-ℝ℡ℤ\u2126ℨ-ℭℯ-ℱℳℴ"
    "Ⓐ-ⓩ\U0001f110-\U0001f129\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189🇦-🇿"
    "\U0001d400-\U0001d7ff㌀-㍗㍱-㎠㎢-㏟㈀-㈓㈕-㈛㈠-㈰㈳-㉃㉠-㉻㊀-㊰⺀-⿕豈-龎"
)
"""Set of characters that are variants of plain letters: ligatures, mathematical, full-width and half-width letters, and
radicals. It does not have symbols that the rules read (², ½, ℃, ㈱)."""
_LETTERS = {low + at: chr(ord("A") + at) for low in (0x1F150, 0x1F170, 0x1F1E6) for at in range(26)}
"""White letters on black, such as 🅗 and 🅷, and regional letters, which Unicode's NFKC does not change."""
_NUMERALS = "①-⒛⓪⓫-⓴⓵-⓾㉑-㉟㊱-㊿❶-➓"
_LINE = r"(?:(?<=\n)|(?<!.|\n))[ \t]*"
_CITED = r"\d{1,3}(?:\s?[,;–-]\s?\d{1,3})*"
_ONE_BRACKETED = rf"[\[【]{_CITED}[\]】](?:\(https?://[^()\s]{{1,500}}\))?"
_BRACKETED = rf"{_ONE_BRACKETED}(?: ?{_ONE_BRACKETED})*"
SOURCES = (
    "source|sources|citation|citations|cite|ref|refs|quelle|quellen|fuente|fuentes|fonte|fonti|источник|источники|출처|"
    "来源|來源|资料来源|資料來源|出典|参考文献"
)
# After these words, a number in brackets is read, because it is not a citation: "Choose [2]".
_READ_BEHIND = (
    "choose|press|push|select|pick|type|enter|click|tap|dial|say|hit|reply|send|option|options|choice|button|key|number|"
    "no\\.?|item|step|line|page|see|refs?\\.?|references?|sources?|figure|table|chapter|section|level|row|column|index|"
    "as|in|by|from|of|to|with|and|or|than|is|are|at|on|for|the|sie|taste|nummer|siehe|von|und|oder|mit|auf|bei|schritt|"
    "wählen?|wähle|drücken?|punkt|elija|elige|pulse|presione|marque|oprima|escriba|seleccione|opción|tecla|número|ver|"
    "véase|en|de|y|o|con|por|paso|punto|choisissez|tapez|composez|touche|numéro|voir|dans|et|ou|avec|par|sur|étape|"
    "scelga|scegli|prema|premi|digiti|digita|selezioni|opzione|tasto|numero|vedi|di|e|da|su|passo|нажмите|выберите|"
    "введите|наберите|вариант|кнопку|клавишу|цифру|номер|см\\.|в|на|и|или|из|с|от|по|шаг|пункт"
)
_READ_BEHIND_TIGHT = (
    "选择?|選擇?|按|输入|輸入|点击?|點擊?|回复|拨|撥|揀|撳|[是係第见見如图圖表和或与與及]|选项|步骤|键|编号|文献"
)
# After these words, a list of numbers in brackets is a value and not a citation.
_VALUE_BEHIND = (
    "list|lists|array|arrays|vector|vectors|interval|range|set|pair|tuple|matrix|values?|numbers|digits|coordinates|point|"
    "input|output|result|returns?|returned|gives?|gave|prints?|printed|contains?|has|have|had|become|becomes|got|get"
)
# After these words, a number in brackets is a citation even within a sentence.
_CITING = (
    r"(?<=(?<!\p{L})(?i:(?:the|this|that|an?|one|another|recent|previous|earlier) (?:study|paper|review|survey)|"
    r"studies|papers|authors|al\.|colleagues|researchers|scientists|reviews|surveys|findings|literature|research|studien|"
    r"autor(?:en|es|i)|estudios|études|auteurs|studi|исследовани[яй]|авторы))"
)
_INDEXED = (
    r"(?<=(?<![\p{Latin}\p{N}])[a-z][a-zA-Z\d_]{0,40}(?:\[\d+\]){0,3})"
    r"(?:\[\d+(?:, ?\d+)*\])++(?!\s*(?:[.,;:!?)。，；：！？）]|\Z|\n))"
)
"""Matches indices after a lower-case word, as in "data[12] is empty", but not if a clause ends right after them."""
_READ_BEFORE = r"\s?(?:を|キー|番|ボタン|または|か(?!ら)|号|號|键|鍵|或|和|번|을|를|키|또는)|\p{Latin}|\d|\s?[=(]|\.\w"
_SOURCE = (
    r"[\[【]\d+(?::\d+)?†[^\[\]【】\n]{0,80}[\]】]|\[\^[^\[\]\s]{1,40}\](?:(?<=(?:\A|\n)\[[^\[\]\s]+\]):)?"
    r"|\uE200cite[^\uE201\n]{0,200}\uE201|(?::contentReference)?\[oaicite:\d+\](?:\{index=\d+\})?"
    r"|\[(?:cite(?:_start|_end|: ?[\d, .-]{1,40})"
    r"|(?i:(?:citation|clarification|verification|source|page) needed|(?:by )?whom\?|wh(?:o|ich|en|ere)\?|dead link"
    r"|cita requerida|réf\. nécessaire|来源请求|來源請求|要出典))\]"
    rf"| ?[(\[（【](?i:{SOURCES})\.?\s?[:：#№]?\s?{_CITED}[)\]）】]"
    rf"|(?= ?[\[【]\d)(?<![\]】][,，、])"
    rf"(?<!(?<!\p{{L}})(?:\p{{Latin}}|arr|array|args|argv|vec|buf|nums|dict|tuple|idx|tmp|str))"
    r"(?<!_\w{0,40})"
    rf"(?!{_INDEXED})"
    rf"(?<!(?<!\p{{L}})(?i:{_READ_BEHIND})|{_READ_BEHIND_TIGHT})"
    rf"(?:(?<=[^\s\[【(（:：])|(?<=[\p{{L}}\p{{N}}%.!?”\"’»)]) (?={_BRACKETED}(?:[.,;:!?。，；：！？)]|\s*(?:\Z|\n)))"
    rf"|(?<=\p{{L}})(?<!(?<!\p{{L}})(?i:{_VALUE_BEHIND})) (?=\[\d{{1,3}}(?:, ?\d{{1,3}}){{1,2}}\] \p{{L}})"
    rf"|{_CITING} (?=\[{_CITED}\] \p{{Ll}}))"
    rf"{_BRACKETED}(?!{_READ_BEFORE})"
)
"""Matches citation marks that people and models write: rose.[1], 【4:0†source】, [^2], (source 3)."""
_NOTED = r"(?:\p{Ll}{5}|[^\d\s][.,;:!?…。，；！？])[”\"’」』»)]{0,2}"
# Words that keep their hyphen when they are joined again after a line end: they have a second hyphen, a first part such
# as "well-" ("well-known"), or an ending such as "-то" ("кто-то").
_HYPHENATED = compiled(
    r"(?i).*-.*-.*|(?:well|self|half|high|low|long|short|full|cross|ever|hard|old|new|ill|all|much|life|time|user|open|real|one|"
    r"two|three|four|five|six|seven|eight|nine|ten|first|second|third|last|state|world|wide|best|better|free|fast|slow|large|"
    r"small|deep|good|right|left|early|mother|father|brother|sister|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)-"
    r"(?!(?:ness|ish|ings?|ful|less|ly|ity|ist|istic|ism|ize|dom|ments?|eous|ary|some|ling|ages?|est|ers|hood|ship|wards?)\Z)"
    r".*|ex-(?:husband|wi[fv]e|boy|girl|partner|lover|spouse|president|minister|con\Z|convict|officer|player).*|"
    r"so-called|(?:ce\p{L}+|là|par|jusque)-(?:ci|là)|(?:.*[^\p{L}])?(?:est|sont|était)-ce|"
    r"\p{L}*[td]-(?:ils?|elles?|on)|"
    r"\p{L}*[sz]-(?:je|tu|nous|vous)|(?:moi|toi|lui|elles?|nous|vous|eux)-mêmes?|peut-être|quel\p{L}*-uns?|avant-\p{L}+|après-\p{L}+|"
    r"(?:к|ч)\p{L}+-то|\p{L}+-(?:либо|нибудь|таки)|(?:кое|экс)-.*|из-(?:за|под)|по-\p{L}+(?:ски|цки|ому|ему)|во-\p{L}+х"
)
_SUSPENDED = compiled(r"(?i:and|or|to|und|oder|bis|sowie|bzw|et|ou|или)")
_INDEX = compiled(r"\[(?=\d)|(?<=\d)\]")
_SPOKEN = compiled(r"[\p{L}\p{N}]")
_HEAD = compiled(r"[\p{L}'’-]*\Z")
_HEADING = r"={2,6}[ \t]*(?=\p{L}[^=\n]{0,200}={2,6}[ \t]*(?:\n|\Z))"
_PARTS = (
    rf"(?P<fence>{_LINE}(?P<f>```|~~~(?=[ \t]*\S*[ \t]*\n))[^\n]*\n"
    rf"(?P<program>(?:(?!{_LINE}(?P=f))[^\n]*(?:\n|(?<=[^\n])\Z))*+)(?:{_LINE}(?P=f)[^\n]*|\Z))",
    r"(?P<code>(?P<tick>`{1,2})(?!`)(?P<inner>[^`\n]{1,1000})(?P=tick)(?!`))",
    r"(?=[<=])(?:(?P<comment><!--(?:(?!-->)[\s\S]){0,2000}+-->|<!(?i:doctype)\b[^<>]{0,500}>|<(?P<hidden>script|style)\b[^<>]{0,500}>"
    r"(?:(?!</(?P=hidden))[\s\S]){0,2000}+</(?P=hidden)\s*>)"
    r"|(?P<auto><(?P<target>(?=\p{L})(?:https?://|mailto:)?[^\s<>@]{1,500}[@./:][^\s<>]{1,500})>"
    r"|<!\[CDATA\[(?P<target>(?:(?!\]\]>)[\s\S]){0,2000}+)\]\]>"
    rf"|(?!{_LINE}{_HEADING})(?<![[\w=)\]]--[{CJK}]])==(?P<target>[\p{{L}}\p{{N}}*_][^=\n]{{0,200}}(?<!\s))==(?![[\w=(]--[{CJK}]]))"
    rf"|(?P<html>(?!{_COMPARED})</?(?P<name>(?i:{_HTML})){_ATTRIBUTES}\s*/?>"
    r"|</?[A-Za-z][\w:.-]{0,40}"
    r"(?:\s+[\w:-]{1,40}\s*=\s*(?:\"[^\"<]{0,500}\"|'[^'<]{0,500}'|[^\s\"'<>=]{1,100}))++\s*/?>|</[A-Za-z][\w:.-]{0,40}>"
    rf"|<(?P<other>[A-Za-z](?:(?=>)|[\w:.-]{{1,40}})){_ATTRIBUTES}>(?:(?<=(?<![^\s>])<[\w-]{{2,40}}>)(?=[\dA-Z]|[a-z]{{2}})"
    r"|(?=[\s\S]{0,2000}?</(?P=other)\s*>)))"
    rf"|(?P<auto>(?<![[\w]--[{CJK}]])<(?P<target>[A-Za-z][\w-]{{0,40}})>(?![[\w]--[{CJK}]])))",
    r"(?P<entity>&(?:[A-Za-z][A-Za-z0-9]{1,30}|#\d{1,7}|#[xX][\da-fA-F]{1,6});)",
    rf"(?P<source>(?=[ \[【(（:\uE200])(?:{_SOURCE}))",
    r"(?P<link>(?P<image>!?)\[(?!\d+\]\[\d+\])(?P<words>[^\[\]\n]{0,500})\]"
    r"(?:\((?:[^()\s]|\([^()\s]*\)){0,1000}(?: \"[^\"\n]*\")?\)|\[[^\[\]\n]{0,100}\]))",
    rf"(?P<rule>{_LINE}(?P<r>[-*_=])(?:[ \t]*(?P=r)){{2,}}[ \t]*(?=\n|\Z))",
    rf"(?P<row>{_LINE}\|?[ \t]*:?-{{3,}}:?[ \t]*(?:\|[ \t]*:?-{{3,}}:?[ \t]*)+\|?[ \t]*(?=\n|\Z))",
    rf"(?P<block>{_LINE}(?:(?:[-*+•▪◦‣·–][ \t]+(?:\[[ xX]\][ \t]+)?|\#{{1,6}}[ \t]+|{_HEADING}|>[ \t]?)"
    r"(?=\S))+)",
    rf"(?P<listed>{_LINE}\d{{1,3}}(?P<paren>[.)])(?=[ \t]+\S))",
    r"(?P<cell>[ \t]*\|(?!\|)[ \t]*)",
    r"(?P<escape>\\(?P<escaped>[*_`~#\[\]()|>]))",
    rf"(?P<exponent>\d[eE]\+?(?<=(?<![[\p{{L}}\p{{N}}_]--[{CJK}]]|\d[.,:]|[[\w)\]]--[{CJK}]][-−])"
    r"(?:(?:\d|\d{1,30}[.,]\d{1,60})[eE]\+?|\d{1,30}[eE](?:\+|(?=[-−]))))(?=[-−]?\d{1,3}(?![\p{Latin}\d]|[.,]\d|-\w{4}))"
    rf"|\*\*(?<=(?<![[\w.,*]--[{CJK}]])(?:\d|10{{1,6}}|[a-z])\*\*)(?=\d{{1,2}}(?![\p{{Latin}}\d*]|[.-]\w)))",
    r"(?P<emphasis>\*{1,3}|_{1,3}|~~)",
    rf"(?P<emoji>(?: (?=(?:{_EMOJI})+[.,!?;:]))?(?:{_EMOJI})+)",
    r"(?P<torn>[-‐\u00AD](?:(?<=[\p{Latin}\p{Cyrillic}]\p{Ll}.)[ \t]*\r?\n[ \t]*(?=(?P<rest>\p{Ll}{2,}))"
    r"|(?<=[\p{Latin}\p{Cyrillic}\d].)[ \t]*\r?\n[ \t]*"
    r"(?=(?P<own>[\p{Lu}\d])|(?<=(?<!\p{L})\p{L}-\s+)(?P<own>\p{Ll}{2}))))",
    r"(?P<invisible>[\u00AD\u200B-\u200F\u202A-\u202E\u2060-\u2069\uFEFF\uFE00-\uFE0F\u20E3]+)",
    r"(?P<break>(?:[ \t]*(?:\r\n?|\n))+)",
    r"(?P<blanks>[ \t\u00A0\u2000-\u200A\u202F\u3000]{2,}|[\t\u00A0\u2000-\u200A\u202F\u3000])",
    r"(?=[=⁰¹²³⁴-⁻ⁿˣ])(?:"
    r"(?P<invisible>={2,6}(?<=(?:\A|\n)={2,6}[ \t]*\p{L}[^=\n]{0,200}={2,6})(?=[ \t]*(?:\n|\Z)))"
    rf"|(?P<note>[⁰¹²³⁴-⁹]+(?<={_NOTED}[⁰-⁹¹²³]+)(?![⁰-⁹⁺⁻\p{{L}}\p{{N}}]))"
    r"|(?P<charge>[¹²³⁴-⁹]?[⁺⁻](?<=[\p{Lu}₀-₉)\]].?.|\p{Lu}\p{Ll}.?.)(?![⁰¹²³⁴-⁹ⁿ\p{Latin}]))"
    r"|(?P<power>(?:(?<=\p{L})(?=⁻)|(?<=(?<![\p{Latin}\p{Greek}])[\p{Latin}\p{Greek}]|[\d)])|(?=[⁰-⁹¹²³]+\p{Lu}))(?:[⁺⁻⁰¹⁴-⁹][⁰¹²³⁴-⁹]*|[²³][⁰¹²³⁴-⁹]+|[ⁿˣ](?![ʰ-ʸᴬ-ᶿˡ-ˣⁱⁿ]))))",
    rf"(?P<wide>[{STYLED}]+)|(?P<numeral>[{_NUMERALS}])",
)
_NOT_PLAIN = r"(?![A-Za-zÀ-ÿ\u0400-\u04FFぁ-ヾ一-鿿가-힣])"
"""Lookahead that skips most letters quickly: no part of `_PARTS` begins with them."""
_ENDED = compiled(r"[\p{Sentence_Terminal}…:：;；,，、—-][\"'”’»)\]）】*_~]*\s*\Z")
_CLOSING = compiled(r"[。，；：！？）]|[.,;:!?…)\]](?![\w)(/-])")
_HAN = compiled(r"[\p{Han}\p{Hiragana}\p{Katakana}]\W*\Z")
_WIDE = compiled(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_SHORT = 24
"""Maximum width of a line that may be a list item; a Chinese character has a width of 2, other letters of 1."""
_UNIT_STOP = compiled(r"(?<=\d ?\p{L}{1,5})\.\Z")
_GOES_ON = compiled(
    r"(?i)\b(?:an?|the|of|in|on|at|to|for|and|or|with|by|from|is|are|der|die|das|und|oder|von|mit|für|im|am|zu|el|la|los|"
    r"las|de|del|y|o|en|con|le|les|des|du|et|ou|un|une|il|lo|gli|di|e|и|в|на|с|по|для)\Z"
)


@lru_cache(maxsize=64)
def _pattern(marks: frozenset[str], written: frozenset[str]) -> Match:
    tag = rf"(?P<tag>{any_of(marks)}|<\|[^|<>]{{1,40}}\|>)"
    letter = r"[\p{Latin}\p{Cyrillic}\p{M}]"  # letters of scripts that have spaces between words
    named = r"\L<words>" if written else any_of(())
    word = rf"(?P<lexicon>(?<!{letter}|\d(?=[\p{{Latin}}\d])){named}(?!{letter}))"
    words = {"words": list(written)} if written else {}
    # For CosyVoice3, [x] is a tag and not a ticked box in a list.
    parts = (part.replace("[ xX]", "[ X]") if "[x]" in marks else part for part in _PARTS)
    pattern = rf"{tag}|{word}|{_NOT_PLAIN}(?:{'|'.join(parts)})"
    return regex.compile(pattern, regex.V1, cache_pattern=False, **words)


def strip_markup(text: str, settings: Settings) -> list[Piece]:
    """Split a text into pieces whose `spoken`, joined, has no markup, no invisible characters and no emojis."""
    pieces: list[Piece] = []
    at = 0
    pausing = False  # whether the end of this line is read as a pause
    emphasis = _emphasis_ends(text)
    for found in _pattern(settings.marks, settings.lexicon.written).finditer(text):
        start, end = found.span()
        kind = (
            found.lastgroup if found.lastgroup in _KINDS else next(kind for kind in _KINDS if found[kind] is not None)
        )
        if (
            kind == "tag"
            or (kind == "emphasis" and start not in emphasis)
            or (kind == "cell" and not _in_table(text, start))
        ):
            continue
        if kind == "break":
            # A line break is read as a pause after a heading, an item or a short line, and at a blank line.
            due = pausing or found[0].count("\n") > 1 or _is_item(text, start, end)
            pausing = False
        else:
            due = kind == "html" and _PAUSING.fullmatch(found["name"] or "") is not None
            pausing = pausing or kind in ("block", "listed", "cell")
        if start > at:
            pieces.append(Piece(at, start, text[at:start]))
        pieces += _said(found, kind, settings, line_end(pieces, end == len(text)) if due else " ")
        at = end
    if at < len(text):
        pieces.append(Piece(at, len(text), text[at:]))
    return _closed_up(list(_single_spaces(pieces)))


def without_markup(text: str) -> str:
    """Return the text with spaces instead of markup that is not read; all other characters keep their positions."""
    return "".join(
        text[one.start : one.end] if one.rule is None or _SPOKEN.search(one.spoken) else " " * (one.end - one.start)
        for one in strip_markup(text, Settings())
    )


def open_fence(text: str) -> str:
    """Return the sign (``` or ~~~) of the fenced block of code that is open at the end of the text, or ""."""
    sign = ""
    for line in text.split("\n"):
        begun = line.lstrip(" \t")
        opens = "`" not in begun[3:] and (begun[:3] == "```" or len(begun[3:].split()) < 2)
        if begun[:3] in ("```", "~~~") and sign in ("", begun[:3]) and (sign or opens):
            sign = "" if sign else begun[:3]
    return sign


def _closed_up(pieces: list[Piece]) -> list[Piece]:
    """Drop a space before silent pieces if a punctuation mark comes after them: "Good 【4:0†source】."."""
    if len(pieces) < 3:
        return pieces
    last, found = -1, list[Piece]()
    for piece in pieces:
        before = found[last] if last >= 0 else None
        if before and last < len(found) - 1 and before.spoken[-1] == " " and _CLOSING.match(piece.spoken):
            cut = before.end - (before.rule is None)
            shorter = Piece(before.start, cut, before.spoken[:-1], before.rule)
            found[last : last + 1] = [shorter] if before.rule else [shorter, Piece(cut, before.end, "", "spaces")]
        found.append(piece)
        last = len(found) - 1 if piece.spoken else last
    return found


def _single_spaces(pieces: list[Piece]) -> Iterator[Piece]:
    """Drop a space at the start, and a space after another space, also if silent pieces are between them."""
    blank, silent = True, True
    for piece in pieces:
        if blank and silent and piece.spoken[:1] == " ":
            if piece.rule is None:
                yield Piece(piece.start, piece.start + 1, "", "spaces")
                piece = Piece(piece.start + 1, piece.end, piece.spoken[1:])
            else:
                piece = Piece(piece.start, piece.end, piece.spoken.lstrip(" "), piece.rule)
        silent = not piece.spoken or piece.spoken == " "
        blank = piece.spoken[-1] == " " if piece.spoken else blank
        if piece.end > piece.start:
            yield piece


_KINDS = (
    "tag", "lexicon", "fence", "code", "comment", "auto", "html", "entity", "link", "rule", "row", "block", "listed",
    "cell", "escape", "exponent", "emphasis", "emoji", "invisible", "break", "blanks", "wide", "numeral", "note",
    "charge", "power", "source", "torn",
)  # fmt: skip


_RULES = {"wide": "characters", "numeral": "characters", "invisible": "characters", "break": "line", "torn": "line"}
_RULES |= {"blanks": "spaces", "note": "source", "charge": "power", "exponent": "power"}


def _said(found: Match, kind: str, settings: Settings, pause: str) -> Iterator[Piece]:
    start, end = found.span()

    def within(group: str, rule: str) -> Iterator[Piece]:
        low, high = found.span(group)
        yield Piece(start, low, "", rule)
        yield Piece(low, high, found[group])
        yield Piece(high, end, "", rule)

    if kind == "link":
        yield from within("words", "link")
    elif kind == "auto":
        yield from within("target", "link")
    elif kind in ("code", "fence"):
        inner = "inner" if kind == "code" else "program"
        if settings.silent_code:
            yield Piece(start, end, " ", "code")
            return
        at, high = found.span(inner)
        yield Piece(start, at, "", "code")
        for sign in _INDEX.finditer(found.string, at, high):  # the index of items[2] is not a citation
            yield Piece(at, sign.start(), found.string[at : sign.start()])
            yield Piece(sign.start(), at := sign.end(), " ", "code")
        yield Piece(at, high, found.string[at:high])
        yield Piece(high, end, "", "code")
    elif kind == "listed":
        number = found.start("paren") - len(found[0].strip()) + 1
        yield Piece(start, number, "", "spaces")
        yield Piece(number, found.start("paren"), found[0].strip()[:-1])
        yield Piece(found.start("paren"), end, ".", "list")
    else:
        rule = _RULES.get(kind, kind)
        spoken = _plain(found, kind, settings, pause)
        yield Piece(start, end, spoken, None if spoken == found[0] else rule)


def _plain(found: Match, kind: str, settings: Settings, pause: str) -> str:
    match kind:
        case "lexicon":
            return settings.lexicon[found[0]]
        case "entity":
            return html.unescape(found[0]).replace("\u00a0", " ")
        case "wide":
            return unicodedata.normalize("NFKC", found[0].translate(_LETTERS))
        case "numeral":
            return f"{unicodedata.numeric(found[0]):.0f}{' ' * found.string[found.end() : found.end() + 1].isalnum()}"
        case "charge":  # the charge of an ion, as in Fe³⁺
            return " " + " ".join(unicodedata.normalize("NFKC", found[0]))
        case "exponent":  # 2**10 and 3.2E-4
            return "^" if found[0] == "**" else f"{found[0][0]}×10^"
        case "power":
            return "^" + unicodedata.normalize("NFKC", found[0])
        case "torn":
            head = _HEAD.search(found.string, max(0, found.start() - 40), found.start())[0]
            if found[0][0] == "\u00ad" or found["own"]:
                return found[0][0].strip("\u00ad")
            return (
                "- "
                if _SUSPENDED.fullmatch(found["rest"])
                else "-" * bool(_HYPHENATED.fullmatch(f"{head}-{found['rest']}"))
            )
        case "escape":
            return str(found["escaped"])
        case "cell":
            edges = found.string[max(0, found.start() - 1) : found.start()], found.string[found.end() : found.end() + 1]
            return "" if any(edge in ("", "\n") for edge in edges) else ", "
        case "html":
            name, after = found["name"] or "", found.string[found.end() : found.end() + 1]
            apart = _APART.fullmatch(name) or (name == "a" and found.string.endswith("</a>", 0, found.start()))
            joins = after.isalnum() and not _WIDE.match(after)
            return pause if _PAUSING.fullmatch(name) else " " * bool(apart and joins)
        case "break":
            # A line break after a unit's full stop is kept, because the rule for units looks for the end of the line.
            return (
                "\n"
                if pause == " " and _UNIT_STOP.search(found.string[max(0, found.start() - 8) : found.start()])
                else pause
            )
        case "blanks":
            return " "
        case "emoji" if settings.named_emojis:
            marked = found.string[found.end() : found.end() + 1] in ("", *".,!?;:。，！？；： ")
            return f" {_emoji_names(found[0])}{'' if marked else ' '}"
    return ""


def _is_item(text: str, start: int, end: int) -> bool:
    """Return whether the line before the break `start` … `end` is an item, as in a list: it is short and complete.

    A line of a wrapped paragraph is longer, ends with a word such as "the", or has a lower-case letter after the break.
    """
    line = text[max(text.rfind("\n", 0, start) + 1, start - 2 * _SHORT) : start].strip()
    following = text[end : end + 1]
    if not line or following.islower() or not (following.isalnum() or following in '¿¡"“«「'):
        return False
    return len(line) + len(_WIDE.findall(line)) <= _SHORT and not _GOES_ON.search(line)


def line_end(before: list[Piece], last: bool) -> str:
    """Return the text for a line's end: a full stop, unless the words before it end with a punctuation mark."""
    said = "".join(piece.spoken for piece in before[-6:]).rstrip()
    if not said or _ENDED.search(said):
        return "" if last else " "
    return "。" if _HAN.search(said) else "." if last else ". "


def _emoji_names(run: str) -> str:
    names = (unicodedata.name(one, "").lower() for one in run if one not in "\ufe0f\u200d " and not "🏻" <= one <= "🏿")
    return ", ".join(dict.fromkeys(filter(None, names)))


def _in_table(text: str, at: int) -> bool:
    line = text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]
    return line.count("|") > 1 and line.strip().startswith("|")


_RUN = compiled(r"\*{1,3}|_{1,3}|~~|\n\s*\n")


def _emphasis_ends(text: str) -> set[int]:
    """Return the positions of emphasis marks in pairs: a mark before a word, and an equal mark after a word."""
    paired: set[int] = set()
    open_: dict[str, int] = {}
    for found in _RUN.finditer(text):
        sign, (start, end) = found[0], found.span()
        if sign[0] == "\n":
            open_.clear()
            continue
        before, after = text[start - 1 : start], text[end : end + 1]
        inner = before.isalnum() and after.isalnum() and before.isascii() and after.isascii()
        if sign in open_ and before.strip() and not (inner and len(sign) == 1):
            paired |= {open_.pop(sign), start}
        elif after.strip() and (not before.isalnum() or not before.isascii() or len(sign) == 2) and not inner:
            open_[sign] = start
    return paired
