"""The default model speaks: its words are understood, its voices told apart, and its streams are as good as its files.

The limits lie far above what the model reaches and far below what a broken one does: the tests at the end hold the
same scorer and the same limits against audio, texts and weights that are wrong on purpose.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vivavoce
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import Stage
from vivavoce.engine.engine import Engine
from vivavoce.engine.request import EngineRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.frontend.speech import SpeakOptions
from vivavoce_bench.evaluate import Case, Clip, Control, Instruments, Manner, PocketSphinx, Report, assess, word_errors
from vivavoce_bench.evaluate.error_rate import words
from vivavoce_bench.evaluate.speaking import embed_with, speak_all

pytestmark = pytest.mark.slow

pytest.importorskip("pocketsphinx", reason="needs the extra eval")

ROOT = Path(__file__).parents[2]
SENTENCES = (ROOT / "benchmarks" / "sentences" / "held_out.txt").read_text(encoding="utf-8").splitlines()[:12]
"""None of them was in the training's corpus."""
UNHEARD = ROOT / "tests" / "data" / "mini" / "unheard.flac"
UNHEARD_TEXT = "The harbor was quiet before dawn, and the old boats moved slowly."
SEED = 7

MOST = {"wer_closed": 0.12, "wer_free": 0.55, "per": 0.55, "runaways": 0}
BETWEEN = {
    "s_per_character": (0.04, 0.16),
    "level": (0.02, 0.4),  # root mean square of an utterance
    "clipping_share": (0.0, 1e-3),
    "silence_ratio": (0.0, 0.4),
}
LEAST_RECOGNISED_VOICES = 0.85


@dataclass(frozen=True)
class Spoken:
    """Utterances and what was measured of them."""

    clips: list[Clip]
    report: Report


@pytest.fixture(scope="session")
def tts(tmp_path_factory):
    tts = vivavoce.load(device="cpu", voices=tmp_path_factory.mktemp("voices"))
    assert tts.card.name == "mini"
    return tts


@pytest.fixture(scope="session")
def voices(tts):
    """The model's own eight, and one that its training never heard."""
    return {**{name: tts.voice(name) for name in tts.voices()}, "unheard": tts.voice(UNHEARD, UNHEARD_TEXT)}


@pytest.fixture(scope="session")
def listen(tts, voices):
    """Measures clips; quick: by the closed vocabulary alone, which takes a fifth of the time.

    That vocabulary is always of all sentences, however few of them are spoken.
    """
    sphinx = PocketSphinx()
    closed = sphinx.closed([words(tts.normalize(sentence)) for sentence in SENTENCES])
    quick_ears = SimpleNamespace(transcribe=lambda samples: "", closed=lambda sentences: closed)
    parts = {name: getattr(sphinx, name) for name in ("transcribe", "phones", "pronunciations")}
    ears = SimpleNamespace(**parts, closed=lambda sentences: closed)

    def measure(clips, *, quick=False, control=None):
        recogniser = quick_ears if quick else ears
        instruments = Instruments(lambda: recogniser, spell=tts.normalize, embed=embed_with(tts.embed))
        return assess(clips, voices, instruments, control=control)

    return measure


@pytest.fixture(scope="session")
def spoken(tts, voices, listen):
    """Two thirds of the sentences, one in each of the model's own voices."""
    clips = list(speak_all(tts, in_turn(SENTENCES[:8], tts.voices()), voices, Manner(seed=SEED)))
    return Spoken(clips, listen(clips))


def in_turn(sentences, names):
    return [Case(f"{place:02d}", text, voice=names[place % len(names)]) for place, text in enumerate(sentences)]


def faults(clips, report):
    """Every figure that no sound model has, by name."""
    figures = {key: report.summary[key] for key in MOST if report.summary[key] > MOST[key]}
    if (rate := report.summary["identification_rate"]) < LEAST_RECOGNISED_VOICES:
        figures["identification_rate"] = rate
    for clip, utterance in zip(clips, report.utterances, strict=True):
        row = {**utterance, "level": float(np.sqrt(np.mean(clip.samples**2)))}
        for key, (least, most) in BETWEEN.items():
            if not least <= (row[key] or 0.0) <= most:
                figures[f"{key} of {row['id']}"] = row[key]
    return figures


def test_unheard_sentences_are_understood_in_every_voice(spoken):
    assert faults(spoken.clips, spoken.report) == {}
    assert spoken.report.summary["utterances"] == 8
    assert len(spoken.report.voices) == 8


def test_an_unheard_speaker_is_cloned(tts, voices, listen):
    report = listen(list(speak_all(tts, in_turn(SENTENCES[6:9], ["unheard"]), voices, Manner(seed=SEED))), quick=True)
    assert report.summary["wer_closed"] <= 0.2
    assert report.summary["runaways"] == 0
    assert [one["nearest_voice"] for one in report.utterances] == ["unheard"] * 3
    cosines = dict(report.similarity_matrix["unheard"])
    own = cosines.pop("unheard")
    assert own > 0.5
    assert own > max(cosines.values()) + 0.05  # its timbres all come from one teacher and lie close together


def test_streams_are_as_good_as_files(tts, spoken, listen):
    whole = spoken.clips[:2]
    streams = [streamed(tts, clip) for clip in whole]
    for clip, stream in zip(whole, streams, strict=True):
        assert len(stream.samples) == len(clip.samples), "not the same tokens"
        assert likeness(stream.samples, clip.samples) > 0.95
        assert stream.joins, "all came at once"
        assert stream.joins[0] < 0.8 * len(clip.samples)
    report = listen(streams, quick=True)
    assert report.summary["joins_over"] == 0
    assert report.summary["join_median_ratio"] < 2
    errors_of_files = sum(one["closed_errors"] for one in spoken.report.utterances[:2])
    assert abs(report.summary["wer_closed_errors"] - errors_of_files) <= 1


def test_streams_in_company_are_those_alone(tts, spoken, listen):
    """Three streams at once: the same words are heard, and the audio is that of each alone."""
    clips = spoken.clips[:3]
    alone = [streamed(tts, clip) for clip in clips]
    synthesizer = tts
    with Engine(synthesizer.engine.models, EngineSettings(slots=4, admission=AdmissionMode.ALL)) as engine:
        requests = []
        for clip in clips:
            options = SpeakOptions(seed=clip.seed)
            parts = synthesizer.front_end.requests(clip.case.text, tts.voice(clip.voice), options)
            requests.append(EngineRequest(tuple(parts), ChunkPolicy.low_latency()))
        handles = [engine.submit(request) for request in requests]
        together = [replace(clip, samples=handle.result().samples) for clip, handle in zip(clips, handles, strict=True)]
        assert engine.statistics.stage(Stage.DECODE).batch_size.maximum == 3
    for one, other in zip(together, alone, strict=True):
        assert len(one.samples) == len(other.samples)
        assert likeness(one.samples, other.samples) > 0.999
    heard = [listen(those, quick=True).summary["wer_closed"] for those in (together, alone)]
    assert abs(heard[0] - heard[1]) < 0.02


def test_other_tokens_would_show(tts, spoken):
    clip = spoken.clips[0]
    other = tts.speak(clip.case.text, clip.voice, seed=SEED + 100).samples
    assert likeness(other, clip.samples) < 0.95


def streamed(tts, clip):
    """The same text, voice and seed as a stream."""
    pieces = [chunk.samples for chunk in tts.stream(clip.case.text, clip.voice, seed=clip.seed)]
    joins = tuple(np.cumsum([len(piece) for piece in pieces])[:-1].tolist())
    return replace(clip, samples=np.concatenate(pieces), joins=joins, whole=clip.samples)


def likeness(one, other):
    """Correlation of the log spectra, sample for sample from the start."""
    length = min(len(one), len(other))
    spectra = [
        torch.stft(torch.from_numpy(wave[:length]), 1024, 256, window=torch.hann_window(1024), return_complex=True)
        for wave in (one, other)
    ]
    return float(np.corrcoef([(spectrum.abs() + 1e-3).log().flatten().numpy() for spectrum in spectra])[0, 1])


def test_shuffled_audio_is_not_understood(spoken, listen):
    assert listen(spoken.clips[:3], quick=True, control=Control.SHUFFLED).summary["wer_closed"] > 0.8


def test_another_text_is_not_heard(spoken):
    found = spoken.report.utterances
    pairs = [(other["said"], one["heard_closed"]) for one, other in zip(found, (*found[1:], found[0]), strict=True)]
    assert word_errors(pairs).rate > 0.8


def test_wrong_weights_fail_the_same_limits(tts, voices, listen):
    with disturbed(tts.engine.models.flow.estimator):
        clips = list(speak_all(tts, in_turn(SENTENCES[4:5], tts.voices()), voices, Manner(seed=SEED)))
    found = faults(clips, listen(clips))
    assert {"wer_closed", "wer_free", "per"} <= set(found), found


@contextmanager
def disturbed(network):
    """Noise of half its own deviation on every matrix."""
    generator = torch.Generator().manual_seed(0)
    matrices = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    before = [matrix.detach().clone() for matrix in matrices]
    with torch.no_grad():
        for matrix in matrices:
            matrix.add_(0.5 * matrix.std() * torch.randn(matrix.shape, generator=generator))
        network.lay_out()  # products read packed copies
    try:
        yield
    finally:
        with torch.no_grad():
            for matrix, old in zip(matrices, before, strict=True):
                matrix.copy_(old)
            network.lay_out()
