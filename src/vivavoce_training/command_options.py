"""What the modules of `vivavoce train` share: the group of commands, options, and what several of them do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vivavoce.cli.flags import group, shared
from vivavoce.errors import InvalidRequest
from vivavoce_training.record import shown

if TYPE_CHECKING:
    import torch

app = group(
    "Tune a model on your recordings, or make the mini model anew. docs/training.md has the steps.",
    "vivavoce train prepare recordings corpus --model CosyVoice2-0.5B",
    "vivavoce train lm corpus tuned --init CosyVoice2-0.5B --rate 1e-5 --steps 2000",
    "vivavoce train pack CosyVoice2-0.5B tuned my-model",
    during=shown,
)

_WORDNET = "Folder with WordNet's data files; else VIVAVOCE_WORDNET, else the system's."
Teacher = Annotated[Path, shared("Folder of the teacher; `vivavoce train teacher` fetches it.", "FOLDER", "--teacher")]
WordNetFolder = Annotated[Path | None, shared(_WORDNET, "FOLDER", "--wordnet")]
Device = Annotated[str, shared("auto, cuda, cuda:1 or cpu.", "NAME", "--device")]
Jobs = Annotated[int | None, shared("Worker processes.  [default: one per core]", "NUMBER", "--jobs", min=1)]
TEACHER = Path("kokoro")


def device_named(name: str) -> torch.device:
    """The device of that name; InvalidRequest before any work is done if it is not there."""
    from vivavoce.frontend.model_choice import choose_device

    return choose_device(name)


@contextmanager
def mendable() -> Iterator[None]:
    """Make `InvalidRequest`s of what does not fit: a corpus that is too small, too few sentences."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
