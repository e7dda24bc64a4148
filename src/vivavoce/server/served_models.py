"""The models of a server: finds the model that a request names, and the settings of each further model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vivavoce.checkpoint.known_models import WrittenModel, parse_model, plain_name, plain_names, usual_name
from vivavoce.errors import ModelNotFound
from vivavoce.server.settings import FurtherModel, ModelSection, RequestsSection, ServerSettings

if TYPE_CHECKING:
    from vivavoce.frontend.speech_backend import ModelInfo

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Model names that programs for OpenAI's service send, some with a date; the default model answers to them."""
_OPENAI_MODEL = re.compile(rf"({'|'.join(OPENAI_MODELS)})(-\d+)*", re.ASCII)
_OWN = ("device", "gpus", "dtype", "memory_gb")
"""Settings of [model] that a further model may override."""


def served_model(name: str, about: ModelInfo, rules: RequestsSection, usual: re.Pattern[str] | None = None) -> str:
    """Return the name of the served model that a client's name means; "" for the default model, `about`.

    usual: further names that clients use for the default model, beside OpenAI's. ModelNotFound: the name is unknown.
    """
    asked = plain_name(name)
    for one in about.others:
        if asked == plain_name(one.name):
            return one.name
    if asked in plain_names(about.name) | {plain_name(alias) for alias in rules.model_aliases}:
        return ""
    for one in about.others:
        if asked in plain_names(one.name):
            return one.name
    if _OPENAI_MODEL.fullmatch(asked) or (usual is not None and usual.fullmatch(name)):
        return ""
    known = ", ".join((about.name, *(one.name for one in about.others), *rules.model_aliases, *OPENAI_MODELS))
    raise ModelNotFound(f"model: {name[:80]!r} is not served here; use one of {known}")


def further_sections(settings: ServerSettings) -> dict[str, ModelSection]:
    """Return the section [model] of each further model, by the model's name in requests."""
    return {name: _section(settings, name, one) for name, one in settings.models.more.items()}


def is_on_demand(settings: ServerSettings, name: str) -> bool:
    return (settings.models.more[name].load or settings.models.load) == "on_demand"


def contradictory_models(settings: ServerSettings) -> Iterator[str]:
    """Yield a line for each contradiction among the models; it begins with a setting's name."""
    models = settings.models
    on_demand = sum(is_on_demand(settings, name) for name in models.more)
    kept = 1 + len(models.more) - on_demand
    least = kept + bool(on_demand)
    if models.max_loaded is not None and models.max_loaded < least:
        yield (
            f"models.max_loaded: {models.max_loaded} is too few for {kept} loaded at the start and {on_demand} loaded "
            f"on demand; choose {least} or more"
        )
    for name, one in models.more.items():
        if one.gpus is not None and one.device is not None:
            yield f"models.more.{name}.gpus: {one.gpus} and device {one.device} were given; leave one of them out"


def _section(settings: ServerSettings, name: str, further: FurtherModel) -> ModelSection:
    own: dict[str, Any] = {field: value for field in _OWN if (value := getattr(further, field)) is not None}
    if further.device is not None or further.gpus is not None:
        own = {"device": "auto", "gpus": None, "engines": 1, **own}
    written = WrittenModel(_base(settings, name), name, further.llm)
    own |= {"model": str(written), "variant": further.variant, "adapters": {}}
    return settings.model.model_copy(update=own)


def _base(settings: ServerSettings, name: str) -> str:
    """Return the folder or known name of a further model's base. If the base is another served model, use its base."""
    more, default = settings.models.more, parse_model(settings.model.model or "mini")
    base, seen = more[name].base, {name}
    while base in more and base not in seen:
        seen.add(base)
        base = more[base].base
    return default.model if base in (default.name, usual_name(default.model)) else base
