"""A generation of models has one place for its networks and one for its stages; nothing else knows which they are."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from enum import Enum
from pathlib import Path

import pytest
import torch

import vivavoce
from vivavoce.api import Vivavoce
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.cost_model import ShortBatches
from vivavoce.engine.engine import Engine
from vivavoce.engine.generations import STAGES, StageBuilders
from vivavoce.engine.lm_stage import Sampled
from vivavoce.engine.request import EngineRequest, SegmentRequest
from vivavoce.frontend.voices.stores import open_voice_store
from vivavoce.models.build import Models, build_models
from vivavoce.models.generations import NETWORKS, NetworkPart

SOURCES = Path(vivavoce.__file__).parent
OWN = (
    "models/",
    "engine/flow_stage/",
    "engine/lm_stage/",
    "engine/vocoder_stage/",
    "engine/generations.py",
    "export/",
    "frontend/modes.py",
)
"""A generation's own modules; exports turn its language model into the formats of other runtimes."""
NETWORK_MODULES = re.compile(
    r"vivavoce\.(models\.(flow|vocoder|lm\.(qwen2|slot_lm|fused))\b"
    r"|engine\.(flow|lm|vocoder)_stage\.(stage|padded|plain|recorded|packed\w*)\b)"
)
STAGE_NAMES = {"FlowStage", "LMStage", "VocoderStage"}
V2_WORDS = re.compile(r"\bGeneration\.V2\b|\b(6561|6564|151936)\b")
V2_PLACES = (*OWN, "checkpoint/")


def others(own: tuple[str, ...]) -> list[Path]:
    return [one for one in SOURCES.rglob("*.py") if not one.relative_to(SOURCES).as_posix().startswith(own)]


@pytest.mark.parametrize("path", others(OWN), ids=lambda one: one.relative_to(SOURCES).as_posix())
def test_only_a_generation_s_own_modules_import_its_networks(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not NETWORK_MODULES.match(node.module), node.module
            assert not STAGE_NAMES & {alias.name for alias in node.names}, node.module


def test_sizes_and_special_ids_come_from_the_configuration():
    found = [one for one in others(V2_PLACES) if V2_WORDS.search(one.read_text(encoding="utf-8"))]
    assert not found


class FakeGeneration(str, Enum):
    """One that the program does not know."""

    FAKE = "fake"


class FakeLM:
    """Says the ids 0, 1, 2 and ends."""

    in_flight = steps_in_flight = 0
    self_paced = False
    healthy = True

    def __init__(self, models, *, slots, capacity, **_):
        self.slots, self.capacity, self.end = slots, capacity, models.config.lm.vocabulary.eos
        self.runs, self.due = {}, []

    @property
    def free_slots(self):
        return self.slots - len(self.runs)

    decoding = 0

    def prepare(self, slots=None): ...

    def check(self, run, slot=None): ...

    def wait(self): ...

    def shutdown(self): ...

    def open(self, params, seed):
        slot = next(number for number in range(self.slots) if number not in self.runs)
        self.runs[slot] = None
        return slot

    def prefill(self, runs):
        self.due += [Sampled(slot, (0, 1, 2, self.end), True) for slot in runs]

    def decode(self, steps=1): ...

    def collect(self, wait):
        due, self.due = self.due, []
        return due

    def close(self, slot):
        del self.runs[slot]


class FakeFlow:
    """Two frames for each token, all of them ones."""

    short = ShortBatches()

    def __init__(self, models, **_):
        self.bins = models.config.flow.num_mel_bins

    def prepare(self, frames=None): ...

    def open(self, conditioning, steps):
        return FakePlace()

    def close(self, stream): ...

    def lacks_prompt(self, stream):
        return False

    def start(self, rows):
        return FakeBatch([torch.ones(2 * one.hop, self.bins) for one in rows])


class FakePlace:
    voice, known, prompt_end = None, None, 0


class FakeBatch:
    share = 1.0

    def __init__(self, mels):
        self.mels, self.steps_left = mels, 1

    def step(self):
        self.steps_left -= 1

    def result(self):
        return self.mels

    def abandon(self): ...


class FakeVocoder:
    """A frame's samples are its first bin's value."""

    def __init__(self, models, **_):
        self.hop = models.config.rates.samples_per_frame

    def prepare(self, frames=None): ...

    def open(self, seed, speed, joins):
        return FakeVoiced()

    def close(self, stream): ...

    def run(self, pieces):
        return [piece.mel[:, 0].repeat_interleave(self.hop) for piece in pieces]


class FakeVoiced:
    def frames_of(self, frames, final, whole):
        return frames


@pytest.fixture
def fake(monkeypatch) -> FakeGeneration:
    """A generation of other networks and stages, which the tables alone know."""
    networks = {
        name: NetworkPart(part.part, lambda _: torch.nn.Linear(1, 1, bias=False), part.names)
        for name, part in NETWORKS[Generation.V2].items()
    }
    monkeypatch.setitem(NETWORKS, FakeGeneration.FAKE, networks)
    monkeypatch.setitem(STAGES, FakeGeneration.FAKE, StageBuilders(FakeLM, FakeFlow, FakeVocoder))
    return FakeGeneration.FAKE


def of_generation(models: Models, generation: FakeGeneration) -> Models:
    networks = {name: part.build(models.config) for name, part in NETWORKS[generation].items()}
    return replace(models, config=replace(models.config, generation=generation), **networks)


def test_a_fake_generation_speaks(models, conditioning, fake):
    engine = Engine(of_generation(models, fake))
    try:
        request = EngineRequest((SegmentRequest(conditioning, text=(1, 2, 3)),))
        samples = engine.submit(request).result().samples
    finally:
        engine.close()
    assert len(samples) == 3 * 2 * models.config.rates.samples_per_frame
    assert (samples == 1).all()


def test_a_folder_is_built_by_its_generation_s_networks(babble, monkeypatch):
    built = []
    networks = {
        name: replace(part, build=lambda config, name=name, part=part: built.append(name) or part.build(config))
        for name, part in NETWORKS[Generation.V2].items()
    }
    monkeypatch.setitem(NETWORKS, Generation.V2, networks)
    models = build_models(babble, torch.device("cpu"), language_model=False)
    assert built == ["lm", "flow", "vocoder"]
    assert models.lm.speech_head.weight.is_meta


def test_the_entry_point_speaks_with_a_fake_generation(models, synthesizer, fake, tmp_path):
    engine, store = Engine(of_generation(models, fake)), open_voice_store(str(tmp_path))
    with Vivavoce(engine, synthesizer.front_end, store) as tts:
        speech = tts.speak("Hello there.")
        assert len(speech.samples) == 3 * 2 * models.config.rates.samples_per_frame
        assert len(b"".join(chunk.samples.tobytes() for chunk in tts.stream("Hello there."))) > 0
