"""The scripts a model was trained on: letters of others are refused, emoji and other symbols left out."""

from __future__ import annotations

import regex

from vivavoce.errors import CheckpointError, InvalidText

_NAME = regex.compile(r"\w+")
_NAMED_LETTERS = 5

# Symbols outside ASCII, but not modifiers such as ´, which people type for an apostrophe. Variation selectors and the
# keycap mark belong to emoji only; joiners and tags do inside a run of them.
_SYMBOL = r"[[\p{S}--[\p{ASCII}\p{Sk}]]\p{Emoji_Modifier}\uFE0E\uFE0F\u20E3]"
_SYMBOLS = regex.compile(rf"{_SYMBOL}(?:{_SYMBOL}|[\u200D\U000E0020-\U000E007F])*+", regex.V1)
_SPACES = regex.compile(r" {2,}")
_SPACE_BEFORE_MARK = regex.compile(r" (?=[.,!?;:…)”’]|\Z)|\A ")


class KnownScripts:
    """The scripts of a model, by their Unicode names (`Latin`, `Han`, `Cyrillic`, …).

    A letter belongs to the scripts of its Unicode property Script_Extensions; letters common to all scripts, digits,
    punctuation and combining marks always pass.
    """

    def __init__(self, names: frozenset[str]) -> None:
        """Raise `CheckpointError` if a name is not a script's."""
        self.names = names
        unknown = CheckpointError(
            f"scripts: {sorted(names)} holds a name that Unicode does not know; use names such as Latin or Han"
        )
        if not all(_NAME.fullmatch(name) for name in names):
            raise unknown
        own = "".join(rf"\p{{Script_Extensions={name}}}" for name in (*sorted(names), "Common", "Inherited"))
        try:
            self._foreign = regex.compile(rf"[[\p{{L}}\p{{Nl}}]--[{own}]]", regex.V1)
        except regex.error as error:
            raise unknown from error

    @property
    def has_chinese(self) -> bool:
        """Whether Chinese characters are among the scripts, and so Chinese numerals may be written."""
        return "Han" in self.names

    def check(self, text: str) -> None:
        """Raise `InvalidText` that names the first few letters of other scripts, if there are any."""
        foreign = list(dict.fromkeys(match[0] for match in self._foreign.finditer(text)))
        if foreign:
            named = ", ".join(repr(letter) for letter in foreign[:_NAMED_LETTERS])
            more = f" and {len(foreign) - _NAMED_LETTERS} more" if len(foreign) > _NAMED_LETTERS else ""
            known = ", ".join(sorted(self.names))
            raise InvalidText(
                f"text: the model does not know the letters {named}{more} (it knows the script {known}); "
                "write them in a script that it knows or choose another model"
            )


def drop_symbols(text: str) -> str:
    """Leave out emoji and other symbols beyond ASCII; a space takes their place where words would touch.

    So goes the backslash that wetext puts before a quotation mark: such a model has never seen one.
    """
    text = text.replace('\\"', '"')
    without = _SYMBOLS.sub(" ", text)
    if without == text:
        return text
    return _SPACE_BEFORE_MARK.sub("", _SPACES.sub(" ", without))
