"""The commands that the documents show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for pattern in ("*.md", "docs/*.md", "deploy/**/README.md")
    for page in sorted(ROOT.glob(pattern))
    if page.name != "CHANGELOG.md"
}
"""What is written in each of them."""
COMMAND_LANGUAGES = ("", "bash", "console", "sh")
"""Of blocks of code that hold commands; a block of something else names its language, or `text`."""
SHELL_WORDS = {"export", "source", ".", "cd", "wait", "tee", "printf", "read"}
KEYWORDS = {"while", "do", "done", "for", "if", "then", "fi"}
SEPARATORS = {"|", "||", "&&", ";", "&"}


@dataclass(frozen=True)
class Shown:
    """One command: its program and arguments, and where its output goes. block: the first line of its block."""

    page: str
    block: int
    words: tuple[str, ...]
    into: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.block} {' '.join(self.words)}"


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, language and content of each block of code."""
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text[: block.start()].count("\n") + 1, block[1], block[2]


def commands(text: str, page: str = "") -> Iterator[Shown]:
    """The commands of a page's blocks, in order."""
    for line, language, content in blocks(text):
        if language in COMMAND_LANGUAGES:
            content = re.sub(r" <<'(\w+)'\n.*?^\1$", "", content, flags=re.DOTALL | re.MULTILINE)
            for typed in re.sub(r"\\\n|(?<=\|)\n", " ", content).splitlines():
                yield from _parts(typed, page, line)


def _parts(typed: str, page: str, block: int) -> Iterator[Shown]:
    lexer = shlex.shlex(typed, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        found = [*lexer, ";"]
    except ValueError:  # quotation marks that do not close: no command
        found = [typed, ";"]
    words: list[str] = []
    for word in found:
        if word not in SEPARATORS:
            words.append(word)
            continue
        while words and (words[0] in KEYWORDS or re.match(r"[A-Za-z_]+=", words[0])):
            words.pop(0)
        typed_words = words[: words.index(">")] if ">" in words else words
        into = words[len(typed_words) + 1] if ">" in words else None
        if typed_words:
            program, *arguments = typed_words
            name = program.rpartition("/")[2] if program != "." else program
            yield Shown(page, block, ({"python3": "python"}.get(name, name), *arguments), into)
        words = []
