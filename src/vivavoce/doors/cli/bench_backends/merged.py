"""The merged Hugging Face folder that foreign runtimes load, and what they must know of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vivavoce.checkpoint.hub.locate import models_home
from vivavoce.checkpoint.merged_vocabulary import MergedVocabulary
from vivavoce.errors import CheckpointError
from vivavoce.export.hf.write import CONFIG, TOKENIZER, export_hf
from vivavoce.export.merged_lm import HEAD_BIAS, open_merged_lm

if TYPE_CHECKING:
    from vivavoce.doors.cli.bench_studio import Studio


@dataclass(frozen=True, eq=False)
class MergedModel:
    """A merged Qwen2 model; bias: [padded_size] float32, to be added to the logits, −∞ where no speech is."""

    name_or_path: str
    vocabulary: MergedVocabulary
    bias: Tensor

    @property
    def allowed(self) -> range:
        """The ids that may be drawn: speech, and what ends it."""
        return range(self.vocabulary.speech(0), self.vocabulary.sos)

    def bias_for(self, rows: int) -> Tensor:
        """The bias for a head of that many rows: [rows] float32.

        Raises:
            CheckpointError: the head is too small for the vocabulary.
        """
        if rows < self.vocabulary.size:
            raise CheckpointError(
                f"llm_model_name_or_path: {self.name_or_path!r} has {rows} ids, this model's vocabulary "
                f"{self.vocabulary.size}; make the folder with `vivavoce convert hf`"
            )
        found = torch.full((rows,), -torch.inf)
        shared = min(rows, len(self.bias))
        found[:shared] = self.bias[:shared]
        return found

    def speech(self, ids: Sequence[int]) -> list[int]:
        """Ids that a runtime gave → speech tokens up to the first id that is none."""
        tokens: list[int] = []
        for one in ids:
            if not self.vocabulary.is_speech(one):
                break
            tokens.append(one - self.vocabulary.text_size)
        return tokens


def merged_model(studio: Studio, variant: str | None, name_or_path: str | None) -> MergedModel:
    """The folder or hub name that was given, else one that is made among the downloaded models and used again.

    Raises:
        CheckpointError: the folder is of another model.
        OSError: the place cannot be written.
    """
    vocabulary = studio.vocabulary
    bias = open_merged_lm(studio.folder, vocabulary.text_size, variant).read(HEAD_BIAS)
    if name_or_path is None:
        return MergedModel(str(_made(studio, variant)), vocabulary, bias)
    if Path(name_or_path).is_dir():
        _check_fits(Path(name_or_path), vocabulary)
    return MergedModel(name_or_path, vocabulary, bias)


def _made(studio: Studio, variant: str | None) -> Path:
    """A cache: its name tells the model, its parts and the dtype, so that what is there is what would be made."""
    dtype = str(studio.models.dtype).removeprefix("torch.")
    fingerprint = studio.front_end.extractor.fingerprint
    folder = models_home().parent / "merged" / "-".join(part for part in (fingerprint, variant, dtype) if part)
    if not (folder / CONFIG).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        export_hf(studio.folder, folder, studio.tokenizer.to_json(), dtype=dtype, variant=variant)
    return folder


def _check_fits(folder: Path, vocabulary: MergedVocabulary) -> None:
    """Whether its speech begins where this model's does: ids of another table still give some speech."""
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"llm_model_name_or_path: {str(folder)!r} has no {CONFIG}; make the folder with `vivavoce convert hf`"
        )
    found = _first_speech_id(folder)
    if found is not None and found != vocabulary.speech(0):
        raise CheckpointError(
            f"llm_model_name_or_path: speech begins at id {found} in {str(folder)!r}, in this model at "
            f"{vocabulary.speech(0)}; make the folder with `vivavoce convert hf`"
        )


def _first_speech_id(folder: Path) -> int | None:
    """What its tokenizer says, in either of the two files that may hold added tokens; None: nothing."""
    first = "<|s_0|>"
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        added = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))["added_tokens"]
        return next((int(token["id"]) for token in added if token["content"] == first), None)
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = json.loads((folder / "added_tokens.json").read_text(encoding="utf-8")).get(first)
        return None if found is None else int(found)
    return None
