"""The folder that other runtimes load is made once, and a whole model speaks with what loads it."""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
import torch

from tests.runtimes.runtimes import MergedNetwork, PlainRuntime
from vivavoce.api import Vivavoce
from vivavoce.checkpoint.folder import BACKBONE
from vivavoce.checkpoint.known_models import HOME_VARIABLE
from vivavoce.engine.settings import EngineSettings, has_language_model
from vivavoce.errors import MissingDependency, UnsupportedModel
from vivavoce.frontend.loading import load_model
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.text.tokenizer import TextTokenizer
from vivavoce.frontend.voices.voice import built_in_voices
from vivavoce_export.merged_folder import merged_folder
from vivavoce_runtimes import registry as table
from vivavoce_runtimes.streamed_lm import open_runtime

CPU = torch.device("cpu")
TEXT = "Good morning."


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


def test_it_is_made_once_for_each_dtype_and_file_of_weights(babble, home, tmp_path):
    made = merged_folder(babble, torch.float32)
    assert made.parent == home / "merged"
    before = (made / "config.json").stat().st_mtime_ns
    assert merged_folder(babble, torch.float32) == made
    assert (made / "config.json").stat().st_mtime_ns == before
    assert merged_folder(babble, torch.bfloat16) != made
    tuned = tmp_path / "tuned"
    shutil.copytree(babble, tuned)
    other = merged_folder(tuned, torch.float32)
    os.utime(tuned / "llm.pt", ns=(1, 1))
    assert len({made, other, merged_folder(tuned, torch.float32)}) == 3, "a tuned model takes the place of another"


def test_cosyvoice_1_has_none(babble_v1):
    with pytest.raises(UnsupportedModel, match="CosyVoice 2 and 3 only"):
        merged_folder(babble_v1, torch.float32)


@pytest.mark.parametrize("generation", ["", "_v3"])
def test_a_model_speaks_by_another_runtime_as_by_its_own(generation, request, monkeypatch):
    """The runtime has the network's weights; the engine's models have none."""
    folder = request.getfixturevalue(f"babble{generation}")
    own = Vivavoce(*load_model(folder, (CPU,)))
    models, size = own.engine.models, len(TextTokenizer.from_folder(folder / BACKBONE))

    def make(merged, outline, settings, memory):
        assert (settings.tp, settings.pp, memory.slots) == (2, 1, 3)
        return PlainRuntime(MergedNetwork(models, merged, size))

    monkeypatch.setitem(table.LM, "vllm", partial(open_runtime, make))
    other = Vivavoce(*load_model(folder, (CPU,), settings=EngineSettings(slots=3, lm_backend="vllm", tp=2)))
    assert not has_language_model(other.engine.models)
    voice, options = next(iter(built_in_voices(folder).values())), SpeakOptions(seed=5)
    try:
        said = [one.speak(TEXT, voice, options=options).samples for one in (own, other)]
        assert len(said[0]) == len(said[1]) > 0
        torch.testing.assert_close(*map(torch.from_numpy, said), atol=1e-3, rtol=0)
    finally:
        own.close()
        other.close()


def test_a_runtime_that_is_not_here_is_named(babble):
    for backend in ("vllm", "trtllm"):
        with pytest.raises(MissingDependency, match=f"{'tensorrt_llm' if backend == 'trtllm' else backend}.*cannot be"):
            Vivavoce(*load_model(babble, (CPU,), settings=EngineSettings(lm_backend=backend)))
