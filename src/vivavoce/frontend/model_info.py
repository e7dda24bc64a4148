"""Descriptions of models for users and clients. Needs neither torch nor the model's weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import BACKBONE, YAML_OF, ModelCard, detect_generation, read_card
from vivavoce.checkpoint.official_yaml import read_official_yaml
from vivavoce.checkpoint.settings import Section
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.frontend.text.tokenizer import TextTokenizer


def describe(
    card: ModelCard, generation: Generation, sample_rate: int, marks: frozenset[str], name: str = ""
) -> ModelInfo:
    """Build the description of a model; name: the model's name, or "" for the name on its card."""
    return ModelInfo(
        name or card.name,
        card.description,
        sample_rate,
        card.demo or not card.trained,
        card.instructions,
        card.languages,
        marks,
        generation.value,
    )


def read_info(folder: Path, name: str) -> ModelInfo:
    """Describe a model folder without loading the model. Raises CheckpointError if a file that it reads is missing."""
    generation = detect_generation(folder)
    yaml = YAML_OF[generation]
    rate = Section(yaml, read_official_yaml(folder / yaml)).integer("sample_rate")
    marks = TextTokenizer.from_folder(folder / BACKBONE).marks
    return replace(describe(read_card(folder), generation, rate, marks, name), loaded=False)
