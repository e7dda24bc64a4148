"""Options that several commands of `vivavoce train` share, and the folders and devices that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vivavoce.cli.flags import REQUIRED, argument, flag, shared
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

    from vivavoce_training.data.store import Corpus
    from vivavoce_training.loop import Budget

_WORDNET = "Folder with WordNet's data files.  [default: VIVAVOCE_WORDNET, else the system's]"
_INIT = "Start from this model (a name or a folder), with its sizes and tokenizer.  [default: from scratch]"
_SETTINGS = "For a model from scratch: folder with its yaml, CosyVoice-BlankEN and card.  [default: mini's]"
Teacher = Annotated[Path, shared("Folder of the teacher; `vivavoce train teacher` fetches it.", "FOLDER", "--teacher")]
WordNetFolder = Annotated[Path | None, shared(_WORDNET, "FOLDER", "--wordnet")]
Device = Annotated[str, shared("auto, cuda, cuda:1 or cpu.", "NAME", "--device")]
Seed = Annotated[int, shared("Seed of weights, batches and noise.", "NUMBER", "--seed")]
Init = Annotated[str | None, shared(_INIT, "NAME|FOLDER", "--init")]
Rate = Annotated[float, shared("Highest learning rate.", "NUMBER", "--rate")]
Jobs = Annotated[
    int | None, shared("Worker processes.  [default: one per core, at most 16]", "NUMBER", "--jobs", min=1)
]
Hours = Annotated[float, shared("Hours of the corpus to learn from.", "NUMBER", "--hours")]
Others = Annotated[
    Path | None, shared("Corpus of other speakers to measure on; `train speaker` embeds it, too.", "FOLDER", "--others")
]
Settings = Annotated[Path | None, shared(_SETTINGS, "FOLDER", "--settings")]
TEACHER = Path("kokoro")
CORPUS = argument("Folder of the corpus.", "CORPUS", default=REQUIRED)
OUT = argument("Folder for weights, logs, curves and the state that a later call continues.", "OUT", default=REQUIRED)
SCHEDULE = "Length of the whole training in seconds."


@dataclass(frozen=True)
class Training:
    """Options of all commands that train the language model, the flow or the vocoder."""

    corpus: Path = CORPUS
    out: Path = OUT
    seconds: float | None = flag("Length of the whole training in seconds, all pieces together.", "NUMBER")
    steps: int | None = flag("Length of the whole training in steps.", "NUMBER")
    piece_seconds: float | None = flag("Stop after this many seconds; the next call continues.", "NUMBER")
    settings: Settings = None
    device: Device = "cuda"
    seed: Seed = 0

    @property
    def budget(self) -> Budget:
        """The budget that these options set."""
        from vivavoce_training.loop import Budget

        return Budget(self.seconds, self.steps, self.piece_seconds)


def device_of(name: str) -> torch.device:
    """Return the device of this name; InvalidRequest: this machine does not have it."""
    from vivavoce.frontend.model_choice import choose_device

    return choose_device(name)


def folder_of(model: str | Path) -> Path:
    """Find a model's folder by its name or path; errors as in `model_folder`. UnsupportedModel: CosyVoice 1."""
    from vivavoce.frontend.model_choice import model_folder
    from vivavoce_training.weights import trainable

    return trainable(model_folder(model))


def open_corpus(folder: Path) -> Corpus:
    """Open a corpus; InvalidRequest: the folder is not a corpus."""
    from vivavoce_training.data.store import Corpus

    try:
        return Corpus.open(folder)
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"corpus: {Path(error.filename).name} is not in {str(folder)!r}; `vivavoce train prepare` makes a corpus "
            "of recordings, `vivavoce train corpus` one of synthetic speech"
        ) from None


@contextmanager
def mendable() -> Iterator[None]:
    """Turn a `ValueError` into an `InvalidRequest`: the user can mend its cause, such as a corpus that is too small."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def train_encoder(
    train: Callable[..., Any],
    sizes: Any,
    corpus: Path,
    out: Path,
    seconds: float,
    device: str,
    *,
    seed: int,
    hours: float,
    others: Path | None,
) -> None:
    """Call `train`, which trains the speech tokenizer or speaker encoder, exports it, and runs it on the corpora."""
    from vivavoce_training.loop import Budget

    on, budget = device_of(device), Budget(seconds=seconds)
    for one in (corpus, *(() if others is None else (others,))):
        open_corpus(one)
    train(corpus, out, budget, on, seed=seed, others=others, sizes=replace(sizes, hours=hours))
