"""Loads a model folder: one or more engines that run its networks, and its front end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.engine.engine import Engine
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.front_end import FrontEnd, load_front_end
from vivavoce.frontend.model_choice import share_device
from vivavoce.models.build import build_models


def load_model(
    folder: Path,
    devices: Sequence[torch.device],
    dtype: torch.dtype = torch.float32,
    variant: str | None = None,
    settings: EngineSettings = EngineSettings(),
    text_processes: int = 0,
    llm: Path | None = None,
) -> tuple[Engine, FrontEnd]:
    """Load engine and front end of an official folder; for arguments and errors see `build_models` and `TextFrontEnd`.

    With several devices, each gets an engine in its own process; a device that is listed twice gets two engines.
    """
    if len(devices) == 1:
        engine = open_engine(folder, devices[0], dtype, variant, settings, llm=llm)
        return engine, load_front_end(folder, cast(ModelConfig, engine.models.config), text_processes)
    from vivavoce_fleet.engine_group import open_group

    open_one = partial(open_engine, folder, dtype=dtype, variant=variant, settings=settings, llm=llm)
    engines = open_group(devices, dtype, open_one)
    return cast(Engine, engines), load_front_end(folder, text_processes=text_processes)


def open_engine(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    variant: str | None,
    settings: EngineSettings,
    engines: int = 1,
    llm: Path | None = None,
) -> Engine:
    """Load the engine of an official folder. engines: number of engines on the device; llm: see `build_models`."""
    share_device(device, engines, bounded=settings.memory_bytes is not None)
    external = settings.lm_backend != "torch"
    if external and llm is not None:
        raise InvalidRequest(
            f"model: {settings.lm_backend} runs the folder's own language model, not {llm.name}; leave the file out, "
            "or choose lm_backend torch"
        )
    models = build_models(folder, device, dtype, variant, language_model=not external, llm=llm)
    if external:
        from vivavoce_export.merged_folder import merged_folder

        models = replace(models, merged=merged_folder(folder, dtype, variant))
    return Engine(models, settings)
