"""Text front end: every rule, the tokenizer, normalisation and splitting, per recorded text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.parity.check import Check, Skip, guarded
from tests.parity.reference import Golden, Reference
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.errors import InvalidText
from vivavoce.frontend.text.segmentation import is_only_punctuation, split_paragraph
from vivavoce.frontend.text.text_front_end import TextFrontEnd
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_textnorm import blocks, contains_chinese
from vivavoce_textnorm import official as rules
from vivavoce_textnorm.official import Languages, OfficialNormalizer, number_words

UNBOUNDED = 10**9


def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    functions = _functions(TextTokenizer.from_folder(reference.folder(*golden.checkpoint) / BACKBONE))
    for case in golden.meta["cases"]:
        name = f"{golden.label} {case['text'][:24]!r}"
        yield from guarded(name, _case(name, case, functions))


def _case(name: str, case: dict[str, Any], functions: dict[str, Callable[[str], Any]]) -> Iterator[Check | Skip]:
    wrong = []
    for field, theirs in case.items():
        if field == "text":
            continue
        if field not in functions:
            yield Skip(f"{name} {field}", "no comparison for this field")
        elif isinstance(theirs, dict) and "error" in theirs:
            yield Skip(f"{name} {field}", "the official code raises where we answer or name the error")
        elif field.endswith("_split") and theirs and not any(c.isalnum() for piece in theirs for c in piece):
            yield Skip(f"{name} {field}", "the official code speaks marks alone where we refuse")
        elif (ours := functions[field](case["text"])) != theirs:
            wrong.append(f"{field}: {str(ours)[:60]!r} instead of {str(theirs)[:60]!r}")
    yield Check(name, len(wrong), 0, "; ".join(wrong))


def _functions(tokenizer: TextTokenizer) -> dict[str, Callable[[str], Any]]:
    normalised = TextFrontEnd(tokenizer)
    plain = normalised.as_written()
    for front_end in (normalised, plain):
        front_end._max_tokens = UNBOUNDED  # the official code bounds no piece
    plain._official = OfficialNormalizer(Languages(str, str, str))

    chinese, english = rules.load_reader("zh"), rules.load_reader("en")

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    def read(text: str) -> str:
        reader = chinese if contains_chinese(text) or text.isdigit() else english
        return "".join(map(reader, blocks(text.strip(), reader.language)))

    def split(text: str, *arguments: Any, **options: Any) -> list[str]:
        return [piece for piece, _ in split_paragraph([text], *arguments, **options)]

    return {
        "contains_chinese": contains_chinese,
        "is_only_punctuation": is_only_punctuation,
        "replace_blank": rules.replace_blank,
        "replace_corner_mark": rules.replace_corner_mark,
        "remove_bracket": rules.remove_bracket,
        "spell_out_number": lambda text: rules.spell_out_number(text, number_words),
        "token_ids": lambda text: list(tokenizer.encode(text)),
        "split_zh": lambda text: split(text, len, "zh"),
        "split_en": lambda text: split(text, count, "en"),
        "split_zh_comma": lambda text: split(
            text, len, "zh", token_max_n=30, token_min_n=10, merge_len=5, comma_split=True
        ),
        "normalize_split": lambda text: _segments(normalised, text),
        "normalize_nosplit": normalised.normalize,
        "wetext_zh": read,
        "wetext_en": read,
        "no_tn_split": lambda text: _segments(plain, text),
        "no_tn_nosplit": plain.normalize,
    }


def _segments(front_end: TextFrontEnd, text: str) -> list[str]:
    """Where the official code finds no piece to speak, ours refuses."""
    try:
        return front_end.segments(text)
    except InvalidText:
        return []
