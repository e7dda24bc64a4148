"""`vivavoce convert`: a recording into another voice or, where the first word says so, a model into another form.

A conversion of models joins with one line, at the end of this file; it and its first two examples are shown in the
group's help.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from vivavoce.doors.cli import convert, convert_hf, convert_trtllm, options

_RECORDING = "recording"
"""The command that every first word stands for which names no other; nobody types its name."""
_MOST_EXAMPLES = 2
"""Of each command in the group's help."""


class ConvertGroup(TyperGroup):
    """A group that is the voice conversion itself unless its first word is one of its commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.epilog = options.examples(*(line for command in self.commands.values() for line in _examples(command)))

    # click's types have lived in two packages, so they are not named here.
    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The group's own context for its help and its commands, else the voice conversion's."""
        first = args[0] if args else ""
        if first in ("-h", "--help") or (first in self.commands and first != _RECORDING):
            return super().make_context(info_name, args, parent, **extra)
        return self.commands[_RECORDING].make_context(info_name, args, parent, **extra)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What the voice conversion takes: that of the others stands in their own help."""
        return self.commands[_RECORDING].collect_usage_pieces(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The voice conversion's arguments and options, then the other commands."""
        self.commands[_RECORDING].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _examples(command: Any) -> list[str]:
    """The first lines to type of a command's own help."""
    lines = [line.strip() for line in (command.epilog or "").splitlines()]
    return [line for line in lines if line.startswith("vivavoce ")][:_MOST_EXAMPLES]


app = typer.Typer(
    cls=ConvertGroup,
    help=(
        "Say the words of a recording in another voice.\n\n"
        "With one of the commands below as its first word: write a model in the form of another runtime. A recording "
        "of such a name is given as ./NAME."
    ),
)
app.command(_RECORDING, hidden=True, epilog=convert.EXAMPLES)(convert.convert)
app.command("hf", epilog=convert_hf.EXAMPLES)(convert_hf.convert_hf)
app.command("trtllm", epilog=convert_trtllm.EXAMPLES)(convert_trtllm.convert_trtllm)
