"""`vivavoce normalize`: how a text is read, before any of it is spoken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.entrypoints.cli.console import Reporter, print_table
from vivavoce.entrypoints.cli.flags import REQUIRED, ModelOption, argument, flag
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.service.text.natural.values import Reading

EXAMPLES = (
    'vivavoce normalize "It costs $3.50." --reading natural --explain',
    'vivavoce normalize "价格$20的App" --reading natural',
)
_CHOICES = {"reading": ("official", "natural"), "emojis": ("silent", "named"), "code": ("read", "silent")}


def normalize(
    text: str = argument("The text.", "TEXT", default=REQUIRED),
    reading: str = flag("By which rules: official or natural.", "RULES", default="official"),
    language: str | None = flag("Of what shows none, with natural rules.  [default: told from the text]", "CODE"),
    emojis: str = flag("Silent or named, with natural rules.", "CHOICE", default="silent"),
    code: str = flag("Read or silent, with natural rules: code between backticks.", "CHOICE", default="read"),
    lexicon: Path | None = flag("Words and how they are to be said, with natural rules: see the manual.", "FILE"),
    explain: bool = flag("Also show each change, with natural rules.", default=False),
    model: ModelOption = None,
) -> None:
    """Show how a text is read: numbers, dates, units and signs in words.

    Speech is made with the official rules, unless `--reading natural` is asked for there, too.
    """
    for name, value in (("reading", reading), ("emojis", emojis), ("code", code)):
        if value not in _CHOICES[name]:
            raise InvalidRequest(f"{name}: {value!r} is none of {', '.join(_CHOICES[name])}; choose one")
    if explain and reading == "official":
        raise InvalidRequest("explain: the official rules do not say what they change; add --reading natural")
    with Reporter().working("reading …"):
        from vivavoce.checkpoint.folder import BACKBONE
        from vivavoce.service.model_choice import model_folder
        from vivavoce.service.text.tokenizer import TextTokenizer

        folder = model_folder(model)
        tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
        if reading == "official":
            from vivavoce.checkpoint.folder import read_card
            from vivavoce.service.text.frontend import TextFrontEnd

            print(TextFrontEnd(tokenizer, scripts=read_card(folder).scripts).normalize(text))
            return
        from vivavoce.service.text.checks import check_text
        from vivavoce.service.text.natural.lexicon import read_lexicon
        from vivavoce.service.text.natural.markup import Settings
        from vivavoce.service.text.natural.reader import read
        from vivavoce.service.text.natural.verbalizer import MODULES

        check_text(text)
        if language not in (None, *MODULES):
            raise InvalidRequest(f"language: {language!r} is none of {', '.join(MODULES)}; choose one, or leave it out")
        words = read_lexicon(lexicon) if lexicon else {}
        settings = Settings(
            named_emojis=emojis == "named", silent_code=code == "silent", marks=tokenizer.marks, lexicon=words
        )
        found = read(text, language, settings)
    print(found.spoken)
    if explain and any(piece.rule for piece in found.pieces):
        _explain(found)


def _explain(reading: Reading) -> None:
    rows = [
        (f"{one.start}–{one.end}", reading.text[one.start : one.end], one.spoken, one.rule)
        for one in reading.pieces
        if one.rule
    ]
    print_table(rows, ("characters", "written", "spoken", "rule"))
