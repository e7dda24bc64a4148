"""The starting point of a training: the settings of a model to go on with, or of one that has no weights yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vivavoce.checkpoint.config import Generation, ModelConfig, qwen2_of
from vivavoce.checkpoint.folder import BACKBONE, detect_generation
from vivavoce.errors import CheckpointError, InvalidRequest, UnsupportedModel
from vivavoce.frontend.modes import MODES
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce_training.weights import MINI, checkpoint_config, new_config


def trainable(folder: Path) -> Path:
    """The folder itself; UnsupportedModel: it is of CosyVoice 1."""
    if (generation := detect_generation(folder)) is Generation.V1:
        raise UnsupportedModel(
            f"model: is of generation {generation.value}; `vivavoce train` is for v2 (CosyVoice2) and v3 (CosyVoice3)"
        )
    return folder


def sizes_of(init: Path | None, settings: Path | None) -> tuple[Path, ModelConfig]:
    """The folder whose settings a training follows, and what they say.

    init: folder of the model to start from; settings: of one from scratch, None: mini's. Errors as in `read_config`;
    InvalidRequest: both are given; UnsupportedModel: as in `trainable`.
    """
    if init is None:
        place = MINI if settings is None else trainable(settings)
        return place, new_config(place)
    if settings is not None:
        raise InvalidRequest(f"settings: {settings} is given beside --init, whose model has its own; leave one out")
    return init, checkpoint_config(init)


def text_ids(settings: Path, config: ModelConfig) -> tuple[Callable[[str], Sequence[int]], Sequence[int]]:
    """An encoder of texts by the tokenizer in a folder, and the ids of the system prompt that a generation begins with.

    CheckpointError: the language model has fewer ids than the tokenizer.
    """
    tokenizer, modes = TextTokenizer.from_folder(settings / BACKBONE), MODES[config.generation]
    if (size := qwen2_of(config.lm).text_vocab_size) < len(tokenizer):
        raise CheckpointError(
            f"{BACKBONE}/config.json: vocab_size {size} is below the tokenizer's {len(tokenizer)} ids; make it as large"
        )
    return tokenizer.encode, tokenizer.encode(modes.prompt()) if modes.system else ()
