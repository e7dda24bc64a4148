"""Utterances from a data set of the Hugging Face hub, or of a folder in its form."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from vivavoce.clients.triton.manifest import (
    REFERENCE_FIELDS,
    REFERENCE_TEXT_FIELDS,
    TEXT_FIELDS,
    first_of,
    name_of,
)
from vivavoce.clients.triton.utterance import Utterance
from vivavoce.errors import InvalidRequest, MissingDependency


def read_dataset(name: str, split: str | None) -> list[Utterance]:
    """The utterances of one split; its recordings stay encoded until they are asked for.

    Args:
        name: as `datasets.load_dataset` takes it.
        split: which part; None: the only one there is.

    Raises:
        MissingDependency: the package `datasets` is not installed.
        InvalidRequest: it cannot be loaded, has no such split or several, or no column that holds texts.
    """
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise MissingDependency(
            "huggingface_dataset: the package datasets is not installed; pip install datasets, or give --manifest-path"
        ) from None
    try:
        found = datasets.load_dataset(name, split=split)
    except Exception as error:  # the package has no base of its errors, and those of its back ends come through
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidRequest(f"huggingface_dataset: {name!r} cannot be loaded ({why}); check its name") from error
    rows = found if split is not None else _only_split(name, found)
    columns = list(rows.column_names)
    if not set(columns) & set(TEXT_FIELDS):
        raise InvalidRequest(
            f"huggingface_dataset: {name!r} has {', '.join(columns)}, and no {' or '.join(TEXT_FIELDS)}; name another"
        )
    for column in set(columns) & set(REFERENCE_FIELDS):
        # Decoded by the package, every row would need one more library, and its memory all at once.
        rows = rows.cast_column(column, datasets.Audio(decode=False))
    return [_utterance(row, number) for number, row in enumerate(rows, start=1)]


def _only_split(name: str, parts: Mapping[str, Any]) -> Any:
    if len(parts) != 1:
        raise InvalidRequest(f"split_name: {name!r} has {', '.join(parts)}; name one of them")
    return next(iter(parts.values()))


def _utterance(row: Mapping[str, Any], number: int) -> Utterance:
    recording = first_of(row, REFERENCE_FIELDS) or {}
    content, path = recording.get("bytes"), recording.get("path")
    return Utterance(
        name=name_of(row, number).replace("/", "_"),
        text=str(first_of(row, TEXT_FIELDS) or ""),
        reference=content if content else (Path(path) if path else None),
        reference_text=str(first_of(row, REFERENCE_TEXT_FIELDS) or ""),
    )
