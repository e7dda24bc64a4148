"""`vivavoce normalize`: show how a text will be read, without speaking it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vivavoce.cli.console import Reporter, print_table
from vivavoce.cli.flags import REQUIRED, ModelOption, argument, flag
from vivavoce.frontend.speech_options import REASONING

EXAMPLES = (
    'vivavoce normalize "It costs $3.50." --explain',
    'vivavoce normalize "价格$20的App"',
)


def normalize(
    text: str = argument("The text.", "TEXT", default=REQUIRED),
    reading: str = flag("Rules of normalisation: natural or official.", "RULES", default="natural"),
    language: str | None = flag("Language of the text.  [default: detected]", "CODE"),
    emojis: str = flag("Emojis are silent or named, with natural rules.", "CHOICE", default="silent"),
    code: str = flag("Code between backticks is read or silent, with natural rules.", "CHOICE", default="read"),
    reasoning: str = flag(REASONING.flag_help, "CHOICE", default=REASONING.default),
    lexicon: Path | None = flag("Pronunciations of words, with natural rules; see the manual.", "FILE"),
    explain: bool = flag("Also show each change; needs natural rules.", default=False),
    model: ModelOption = None,
) -> None:
    """Show a text as it will be read: numbers, dates, units and signs in words.

    Without --model, the natural rules read all languages that they know, whether or not a model speaks them.
    """
    with Reporter().working("reading …"):
        from vivavoce.checkpoint.folder import BACKBONE, read_card
        from vivavoce.frontend.model_choice import model_folder
        from vivavoce.frontend.speech import SpeakOptions
        from vivavoce.frontend.text.text_front_end import TextFrontEnd
        from vivavoce.frontend.text.tokenizer import TextTokenizer
        from vivavoce_textnorm import NO_WORDS, read_lexicon

        words = read_lexicon(lexicon) if lexicon else NO_WORDS
        rules: Any = {"language": language, "reading": reading, "emojis": emojis, "code": code, "reasoning": reasoning}
        how = SpeakOptions(**rules, lexicon=words)
        folder = model_folder(model)
        scripts = read_card(folder).scripts if model or reading == "official" else None
        front_end = TextFrontEnd(TextTokenizer.from_folder(folder / BACKBONE), scripts=scripts)
        found = front_end.explain(text, language, how.reading, how.natural, how.reasoning)
    print(found.spoken)
    if explain and found.changes:
        rows = [
            (f"{one.start}–{one.end}", text[one.start : one.end], one.spoken, one.rule or "") for one in found.changes
        ]
        print_table(rows, ("characters", "written", "spoken", "rule"))
