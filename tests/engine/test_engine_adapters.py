"""Adapters of an engine: loaded, named by requests, removed while they speak."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from tests.adapters import merged, write_adapter
from tests.engine.engine_helpers import arriving, at_rest, offline, running, segment
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import InputMode
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import AdapterNotFound, InvalidRequest, Overloaded, UnsupportedModel
from vivavoce.models.build import Models, build_models

ROOM = EngineSettings(slots=8, state_bytes=64 << 20, max_adapters=2, max_adapter_rank=8)


def tokens(engine: Engine, *adapters: str) -> list[tuple[int, ...]]:
    """The speech tokens of requests that speak together, each with its adapter."""
    texts = [replace(segment(None, seed=seed), adapter=name) for seed, name in enumerate(adapters)]
    handles = [engine.submit(offline(one)) for one in texts]
    for handle in handles:
        handle.result()
    return [handle.outcome.tokens[0] for handle in handles]


def test_requests_speak_with_the_adapters_that_they_name(tmp_path: Path, models: Models) -> None:
    folder = write_adapter(tmp_path / "loud", models.lm)
    with running(models, settings=replace(ROOM, adapters={"loud": folder})) as engine:
        (info,) = engine.adapters
        assert (info.name, info.rank, len(info.targets)) == ("loud", 4, 7)
        mixed = tokens(engine, "loud", "", "loud")
    with running(models) as engine:
        plain = tokens(engine, "", "", "")
    with running(replace(models, lm=merged(models.lm, folder))) as engine:
        changed = tokens(engine, "", "", "")
    assert mixed == [changed[0], plain[1], changed[2]]
    assert plain[0] != changed[0]


def test_a_text_that_arrives_keeps_its_adapter(tmp_path: Path, models: Models) -> None:
    folder = write_adapter(tmp_path / "loud", models.lm)

    def said(engine: Engine, adapter: str) -> tuple[int, ...]:
        first = replace(segment(None, text=tuple(range(60, 72))), adapter=adapter)
        handle = engine.submit(arriving(first, InputMode.TOKENS))
        handle.text.push(tuple(range(72, 80)))
        handle.text.close()
        handle.result()
        return handle.outcome.tokens[0]

    with running(models, settings=ROOM) as engine:
        engine.load_adapter("loud", folder)
        adapted = said(engine, "loud")
    with running(replace(models, lm=merged(models.lm, folder))) as engine:
        assert adapted == said(engine, "")


def test_a_removed_adapter_speaks_to_the_end(tmp_path: Path, models: Models) -> None:
    folder = write_adapter(tmp_path / "loud", models.lm)
    with running(models, settings=replace(ROOM, max_adapters=1)) as engine:
        engine.load_adapter("loud", folder)
        before = tokens(engine, "loud")
        text = replace(segment(None), adapter="loud")
        handle = engine.submit(arriving(text, InputMode.SEGMENTS))
        engine.remove_adapter("loud")
        with pytest.raises(AdapterNotFound, match=r"adapter: 'loud' is not loaded \(no adapter is; leave it out\)"):
            engine.submit(offline(text))
        gc.collect()
        with pytest.raises(Overloaded, match="all 1 places are taken, some by removed adapters"):
            engine.load_adapter("again", folder)
        handle.text.close()
        handle.result()
        assert handle.outcome.tokens[0] == before[0]
        at_rest(engine)
        gc.collect()
        assert engine.load_adapter("again", folder).name == "again"
        assert tokens(engine, "again") == before


def test_what_cannot_be_loaded_is_refused(tmp_path: Path, models: Models) -> None:
    folder = write_adapter(tmp_path / "loud", models.lm)
    with running(models, settings=ROOM) as engine:
        engine.load_adapter("one", folder)
        for name, message in (
            ("one", "adapter: 'one' is loaded already; remove it first"),
            ("no space", "adapter: 'no space' is not a name; use 1 to 64 letters"),
            ("none", "adapter: 'none' means to speak without an adapter"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                engine.load_adapter(name, folder)
        with pytest.raises(InvalidRequest, match="r is 9, outside of 1 … 8"):
            engine.load_adapter("wide", write_adapter(tmp_path / "wide", models.lm, rank=9))
        engine.load_adapter("two", folder)
        with pytest.raises(InvalidRequest, match="adapter: 2 are loaded, the limit is 2; remove one first"):
            engine.load_adapter("three", folder)
        with pytest.raises(AdapterNotFound, match=r"'four' is not loaded \(loaded: one, two; name one of them"):
            tokens(engine, "four")
        with pytest.raises(AdapterNotFound, match="'four' is not loaded"):
            engine.remove_adapter("four")
        assert tokens(engine, "two") == tokens(engine, "one")
    with running(models) as engine, pytest.raises(InvalidRequest, match="the engine has no room for adapters"):
        engine.load_adapter("one", folder)


def test_settings_contradict_each_other() -> None:
    with pytest.raises(InvalidRequest, match="adapters: 2 are named, the limit is 1"):
        EngineSettings(adapters={"a": "a", "b": "b"}, max_adapters=1)
    with pytest.raises(InvalidRequest, match="adapters: lm_backend vllm runs no adapters; choose torch"):
        EngineSettings(max_adapters=1, lm_backend="vllm")
    with pytest.raises(InvalidRequest, match="max_adapter_rank: 257 is outside of 1 … 256"):
        EngineSettings(max_adapter_rank=257)


def test_cosyvoice_1_has_no_adapters(babble_v1: Path, models: Models) -> None:
    import torch

    of_v1 = build_models(babble_v1, torch.device("cpu"))
    with pytest.raises(UnsupportedModel, match="the language model of CosyVoice 1 is not Qwen2"):
        Engine(of_v1, ROOM)
