"""The official models by name, and where the two hubs keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vivavoce.checkpoint.config import Generation
from vivavoce.errors import ModelNotFound


@dataclass(frozen=True)
class KnownModel:
    """One published model."""

    name: str
    generation: Generation
    hf_id: str
    modelscope_id: str
    summary: str


_PUBLISHED = (
    KnownModel(
        name="CosyVoice2-0.5B",
        generation=Generation.V2,
        hf_id="FunAudioLLM/CosyVoice2-0.5B",
        modelscope_id="iic/CosyVoice2-0.5B",
        summary="CosyVoice2: voice cloning, instructions, streaming; 24 kHz",
    ),
    KnownModel(
        name="Fun-CosyVoice3-0.5B",
        generation=Generation.V3,
        hf_id="FunAudioLLM/Fun-CosyVoice3-0.5B-2512",
        modelscope_id="FunAudioLLM/Fun-CosyVoice3-0.5B-2512",
        summary="Fun-CosyVoice3: voice cloning, instructions, streaming; 24 kHz",
    ),
    KnownModel(
        name="CosyVoice-300M",
        generation=Generation.V1,
        hf_id="FunAudioLLM/CosyVoice-300M",
        modelscope_id="iic/CosyVoice-300M",
        summary="CosyVoice, first generation: voice cloning; 22.05 kHz",
    ),
    KnownModel(
        name="CosyVoice-300M-SFT",
        generation=Generation.V1,
        hf_id="FunAudioLLM/CosyVoice-300M-SFT",
        modelscope_id="iic/CosyVoice-300M-SFT",
        summary="CosyVoice, first generation: built-in speakers; 22.05 kHz",
    ),
    KnownModel(
        name="CosyVoice-300M-Instruct",
        generation=Generation.V1,
        hf_id="FunAudioLLM/CosyVoice-300M-Instruct",
        modelscope_id="iic/CosyVoice-300M-Instruct",
        summary="CosyVoice, first generation: built-in speakers that follow instructions; 22.05 kHz",
    ),
)

KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType({model.name: model for model in _PUBLISHED})
"""Every published model by its name."""


def known_model(name: str) -> KnownModel:
    """Look up a model by its name or by its id on either hub; upper and lower case are the same.

    Raises:
        ModelNotFound: no published model is called that; the message lists those that are.
    """
    wanted = name.casefold()
    for model in KNOWN_MODELS.values():
        if wanted in {alias.casefold() for alias in (model.name, model.hf_id, model.modelscope_id)}:
            return model
    raise ModelNotFound(
        f"model: {name!r} is neither a folder nor a known model; give a folder or one of {', '.join(KNOWN_MODELS)}"
    )
