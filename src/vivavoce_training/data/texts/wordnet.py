"""Sentences and words from WordNet 3.0 (Princeton University), as Debian's package wordnet-base holds it.

wndb(5WN) describes the format of `data.noun`, `data.verb`, `data.adj` and `data.adv`: a line has the fields of a synset
with its words, a bar, and the gloss. A gloss has definitions and quoted examples, separated by semicolons.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vivavoce.errors import MissingDependency
from vivavoce_training.data.texts.sentence import clean, is_suitable, words

PARTS = ("noun", "verb", "adj", "adv")
USUAL_FOLDER = Path("/usr/share/wordnet")
FOLDER_VARIABLE = "VIVAVOCE_WORDNET"

_EXAMPLE = re.compile(r'"([^"]*)"')
_ASIDE = re.compile(r"\([^()]*\)")
_LEMMA = re.compile(r"[a-z]{2,14}")
_NAME = re.compile(r"(?!.*(?:idae|inae|aceae|ales|iformes)$)[A-Z][a-z]{2,13}")
_MARKED = re.compile(
    r"\b(?:slurs?|offensive|disparag\w*|vulgar|obscen\w*|derogatory|taboo|contemptuous\w*|sex|sexual\w*|erotic\w*"
    r"|genital\w*|prostitut\w*|brothel\w*|porn\w*|masturbat\w*|suicide|narcotics?|excrement|f[ae]eces|nazis?|penis"
    r"|vagina\w*|anus)\b",
    re.IGNORECASE,
)
"""Words in a gloss that mark its synset as insulting or as an unsuitable topic; such synsets are left out."""


@dataclass(frozen=True)
class WordNet:
    """Sentences and words from WordNet, in its order and without repeats.

    examples, glosses: sentences; any two of them have different words. lemmas: part of speech → its single words in
    lower case, or "name" → single words with a capital letter; only words that occur in WordNet's glosses.
    """

    examples: tuple[str, ...]
    glosses: tuple[str, ...]
    lemmas: dict[str, tuple[str, ...]]

    @classmethod
    def read(cls, folder: Path | None = None) -> WordNet:
        """Read `folder`, else the folder that `VIVAVOCE_WORDNET` names, else the system's; takes two seconds.

        Raises:
            MissingDependency: a data file cannot be read.
        """
        entries = [entry for part in PARTS for entry in _entries(part, _data_folder(folder))]
        seen: set[str] = set()
        examples = tuple(_sentences((text for entry in entries for text in _EXAMPLE.findall(entry.gloss)), seen))
        glosses = tuple(_sentences((text for entry in entries for text in _definitions(entry.gloss)), seen))
        return cls(examples, glosses, _common_lemmas(entries, Counter(w for e in entries for w in words(e.gloss))))


@dataclass(frozen=True)
class _Entry:
    part: str
    lemmas: tuple[str, ...]
    gloss: str


def _data_folder(folder: Path | None) -> Path:
    named = os.environ.get(FOLDER_VARIABLE)
    return folder or (Path(named) if named else USUAL_FOLDER)


def _entries(part: str, folder: Path) -> Iterator[_Entry]:
    """Yield the suitable synsets of a part of speech. Lines that begin with two spaces are the file's licence."""
    path = folder / f"data.{part}"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise MissingDependency(
            f"wordnet: {path} cannot be read ({error.strerror}); run `apt-get install wordnet-base`, "
            f"or unpack that package (`dpkg -x`) and name its usr/share/wordnet in {FOLDER_VARIABLE}"
        ) from error
    for line in lines:
        fields, bar, gloss = line.partition("|")
        if line.startswith("  ") or not bar or _MARKED.search(gloss):
            continue
        columns = fields.split(" ")
        count = int(columns[3], 16)
        yield _Entry(part, tuple(columns[4 : 4 + 2 * count : 2]), gloss.strip())


def _definitions(gloss: str) -> list[str]:
    return [part for part in _ASIDE.sub("", _EXAMPLE.sub("", gloss)).split(";") if part.strip()]


def _sentences(texts: Iterator[str], seen: set[str]) -> Iterator[str]:
    for text in texts:
        sentence = clean(text)
        key = " ".join(words(sentence)) if sentence else ""
        if sentence and key not in seen:
            seen.add(key)
            yield sentence


_TAXON = re.compile(r"\b(?:genus|family|order|phylum|class|kingdom|suborder|subfamily|subclass|tribe)\b")


def _common_lemmas(entries: list[_Entry], uses: Counter[str]) -> dict[str, tuple[str, ...]]:
    """Part of speech → single words that occur in WordNet's glosses, which excludes most Latin names of species."""
    found: dict[str, dict[str, None]] = {part: {} for part in (*PARTS, "name")}
    for entry in entries:
        for lemma in entry.lemmas:
            if lemma.lower() not in uses or not is_suitable(lemma):
                continue
            if _LEMMA.fullmatch(lemma):
                found[entry.part][lemma] = None
            elif _NAME.fullmatch(lemma) and not _TAXON.search(entry.gloss):
                found["name"][lemma] = None
    return {part: tuple(lemmas) for part, lemmas in found.items()}
