"""Stage 2: the model repository, from what the stages before it made."""

from __future__ import annotations

from typing import Any

from vivavoce.doors.triton.pipeline.context import Context
from vivavoce.doors.triton.plan import LanguageModel, RepositoryPlan
from vivavoce.doors.triton.render import render_repository


def create_repository(context: Context) -> dict[str, Any]:
    """Render the repository in the mode that is asked for.

    Raises:
        InvalidRequest: an earlier stage is missing, or a value cannot be.
        OSError: the place cannot be written.
    """
    settings, folder = context.settings, context.work.repository
    language_model = LanguageModel(context.work.made(1)["language_model"])
    plan = RepositoryPlan({**_values(context), **settings.values}, settings.mode, settings.models, language_model)
    written = render_repository(plan, folder)
    context.say(f"{settings.mode.value}: {', '.join(plan.names)} in {folder}{'' if written else ' (as they were)'}")
    return {
        "repository": str(folder),
        "mode": settings.mode.value,
        "language_model": language_model.value,
        "models": list(plan.names),
        "values": dict(plan.filled),
    }


def _values(context: Context) -> dict[str, str]:
    """What earlier stages know. Our own language model reads the model's folder, the others their own form of it."""
    model_dir, converted = context.work.made(0)["model_dir"], context.work.made(1)
    merged = converted["merged_dir"]
    values = {"model_dir": model_dir, "llm_tokenizer_dir": merged, "tokenizer_dir": merged}
    if LanguageModel(converted["language_model"]) is LanguageModel.VIVAVOCE:
        return values
    return {**values, "engine_dir": converted["engine_dir"] or merged}
