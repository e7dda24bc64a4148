"""Measures how often the watermark is found in marked and in unmarked speech, and its cost.

    python -m benchmarks.watermark [--speech FOLDER] [--limit NUMBER] [--only PART …] [--json FILE]

The mini model speaks 200 texts in four voices; the folder --speech keeps them. From each speech, with and without the
mark, 5 s at a random place are attacked and given to the detector. Scores with other keys, which are in no speech, show
how rare high scores of unmarked speech are. PESQ is measured if the package pesq is installed; word error rates need
pocketsphinx.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

import vivavoce
from benchmarks.watermark_attacks import ATTACKS, HARDER, Attack, Samples
from vivavoce.engine.watermark import DEPTH_DB, KEY, WatermarkStream
from vivavoce_bench.evaluate.error_rate import word_errors
from vivavoce_bench.hardware import processor
from vivavoce_provenance.detector import THRESHOLD, contrasts, match

SENTENCES = Path(__file__).parent / "sentences/held_out.txt"
RECORDINGS = sorted((Path(__file__).parents[1] / "tests/data").glob("**/*.wav"))
CLIP_S, BEFORE_S = 5.0, 5.4
"""Seconds given to the detector, and seconds that are attacked: more, as an attack may shorten them."""
OTHER_KEYS = [f"key {number}".encode() for number in range(50)]
WORDS_HEARD = 40
PARTS = ("attacks", "quality", "processor_seconds_per_second", "sounds", "words")
Row = dict[str, Any]
Note = Callable[[Row], None]
Spoken = list[tuple[str, Samples, Samples, int]]
"""(text, samples without the mark, samples with the mark, sample rate in Hz)."""


def speech(folder: Path) -> Iterator[tuple[str, str, Samples, int]]:
    """(voice, text, samples, sample rate in Hz) of texts of three sentences; made once, and kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line.strip()][::2]
    texts = [f"{lines[i]} {lines[i + 1]} {lines[(i + 37) % len(lines)]}" for i in range(0, len(lines) - 1, 2)]
    with vivavoce.load() as engine:
        for number, voice in enumerate(engine.voices()):
            file = folder / f"{voice}.npz"
            if not file.exists():
                spoken = list(engine.speak_many(texts, voice, seed=number))
                np.savez(file, *(one.samples for one in spoken), rate=spoken[0].sample_rate)
            kept = np.load(file)
            for text, name in zip(texts, (f"arr_{index}" for index in range(len(texts))), strict=True):
                yield voice, text, kept[name], int(kept["rate"])


def marked(samples: Samples, rate: int) -> Samples:
    """The whole speech with the mark, which is added in pieces of 100 ms."""
    stream = WatermarkStream(rate)
    pieces = np.split(samples, range(rate // 10, len(samples), rate // 10))
    return np.concatenate([*map(stream.mark, pieces), stream.finish()])


def clip(samples: Samples, rate: int, attack: Attack, chance: np.random.Generator) -> tuple[Samples, int]:
    """An attacked clip of 5 s, or less if the speech is shorter, from a random place; and its sample rate."""
    length = min(len(samples), round(BEFORE_S * rate))
    begin = int(chance.integers(0, len(samples) - length + 1))
    after, rate = attack(samples[begin : begin + length], rate, chance)
    return np.ascontiguousarray(after[: round(CLIP_S * rate)], np.float32), rate


def attacked(said: list[tuple[Samples, Samples, int]], name: str, attack: Attack) -> tuple[Row, list[float], Any]:
    """The row of an attack, the scores of unmarked clips, and their scores with other keys."""
    chance = np.random.default_rng(0)
    with_mark, without, others = [], [], []
    for plain, with_it, rate in said:
        with_mark.append(match(contrasts(*clip(with_it, rate, attack, chance))))
        found = contrasts(*clip(plain, rate, attack, chance))
        without.append(match(found))
        others += [match(found, key) for key in OTHER_KEYS]
    row = {
        "attack": name,
        "clips": len(said),
        "found": sum(score >= THRESHOLD for score in with_mark) / len(said),
        "score_median": float(np.median(with_mark)),
        "score_least": min(with_mark),
        "score_1_percent": float(np.quantile(with_mark, 0.01)),
        "unmarked_found": sum(score >= THRESHOLD for score in without),
        "unmarked_most": max(without),
    }
    print("  ".join(f"{key} {value if isinstance(value, str) else format(value, '.4g')}" for key, value in row.items()))
    return row, without, others


def chance_of(scores: list[float]) -> Row:
    """The chance that a score without the mark passes the threshold: counted, and estimated from a fitted tail.

    A score is the largest of many matches. For normal matches its tail falls as exp(−z²/2s²); s fits the upper 1 %.
    """
    values = np.array(scores)
    begin = float(np.quantile(values, 0.99))
    excess = values[values > begin] ** 2 - begin**2
    return {
        "clips": len(values),
        "passed": int((values >= THRESHOLD).sum()),
        "most": float(values.max()),
        "fitted_chance": 0.01 * math.exp(-(THRESHOLD**2 - begin**2) / float(excess.mean())),
    }


def other_sounds() -> Iterator[tuple[str, NDArray[Any], int]]:
    """Sounds that are not speech of mini, 5 s each: noise, tones, hum, clicks, and the recordings of the tests."""
    chance, rate = np.random.default_rng(1), 24_000
    seconds = np.arange(int(CLIP_S * rate)) / rate
    for _ in range(50):
        white = chance.standard_normal(len(seconds))
        pitch, beat = chance.uniform(60, 400), chance.uniform(0.5, 30)
        voiced = sum(np.sin(2 * np.pi * pitch * k * seconds + chance.uniform(0, 6)) / k for k in range(1, 30))
        yield "noise", white, rate
        yield "noise that beats", white * (1 + 0.9 * np.sin(2 * np.pi * beat * seconds)), rate
        yield "hum", voiced + 0.01 * white, rate
        yield "hum that beats", voiced * (1 + 0.9 * np.sin(2 * np.pi * beat * seconds)) + 0.001 * white, rate
        yield "clicks", (chance.random(len(seconds)) < beat / rate) + 0.001 * white, rate
        yield "sweep", np.sin(2 * np.pi * (200 + 100 * beat * seconds) * seconds) + 0.001 * white, rate
    for file in RECORDINGS:
        samples, rate = soundfile.read(file, dtype="float32")
        for begin in range(0, len(samples) // 2, rate // 10):
            yield "recordings, repeated", np.resize(samples[begin:], int(CLIP_S * rate)), rate


def quality(said: list[tuple[Samples, Samples, int]]) -> Row:
    """Differences between marked and unmarked speech."""
    found: dict[str, list[float]] = {"segmental_snr_db": [], "log_spectral_distance_db": [], "peak_growth": []}
    for plain, with_it, rate in said:
        hop = rate // 50
        cut = len(plain) // hop * hop
        before, after = (wave[:cut].reshape(-1, hop).astype(np.float64) for wave in (plain, with_it))
        energy = np.square(before).sum(axis=1)
        heard = energy > energy.max() * 1e-4
        errors = np.square(after - before).sum(axis=1)[heard]
        found["segmental_snr_db"].append(float(np.mean(10 * np.log10(energy[heard] / errors))))
        spectra = [
            np.log10(np.square(np.abs(np.fft.rfft(one[heard] * np.hanning(hop)))) + 1e-9) for one in (before, after)
        ]
        distance = np.sqrt(np.square(10 * (spectra[0] - spectra[1])).mean(axis=1)).mean()
        found["log_spectral_distance_db"].append(float(distance))
        found["peak_growth"].append(float(np.abs(with_it).max() / np.abs(plain).max()))
        if find_spec("pesq"):
            pesq = import_module("pesq").pesq  # the package has no types
            waves = [soxr.resample(wave, rate, 16_000) for wave in (plain, with_it)]
            found.setdefault("pesq_wideband", []).append(pesq(16_000, *waves, "wb"))
    return {
        "clips": len(said),
        **{key: {"mean": float(np.mean(one)), "least": min(one), "most": max(one)} for key, one in found.items()},
    }


def cost(said: list[tuple[Samples, Samples, int]]) -> Row:
    """Processor seconds for a second of speech: of marking, of detecting, and of mini's synthesis."""
    begin = time.process_time()
    for plain, _, rate in said:
        marked(plain, rate)
    marking = (time.process_time() - begin) / sum(len(plain) / rate for plain, _, rate in said)
    plain, _, rate = said[0]
    begin = time.process_time()
    match(contrasts(plain[: int(CLIP_S * rate)], rate))
    detecting = (time.process_time() - begin) / CLIP_S
    with vivavoce.load() as engine:
        engine.warm_up()
        begin = time.process_time()
        spoken = engine.speak("The morning train was late again, so we walked along the river.")
        speaking = (time.process_time() - begin) * spoken.sample_rate / len(spoken.samples)
    return {"marking": marking, "detecting": detecting, "mini": speaking, "share_of_mini": marking / speaking}


def words(spoken: Spoken) -> Row:
    """Word error rates of a recogniser with a large vocabulary, without and with the mark."""
    from vivavoce_bench.evaluate.recogniser import PocketSphinx, as_floats, prepare

    recogniser, found = PocketSphinx(), {}
    for name, is_marked in (("unmarked", False), ("marked", True)):
        heard = [
            (text, recogniser.transcribe(as_floats(prepare(with_it if is_marked else plain, rate))))
            for text, plain, with_it, rate in spoken
        ]
        wrong = word_errors(heard)
        found[name] = {"errors": wrong.errors, "words": wrong.total, "low": wrong.low, "high": wrong.high}
    return {"texts": len(spoken), **found}


def all_attacks(spoken: Spoken, note: Note) -> None:
    """Run all attacks; after each, note a row per attack so far, and the scores of unmarked speech."""
    said = [(plain, with_it, rate) for _, plain, with_it, rate in spoken]
    at_22k = [(soxr.resample(plain, rate, 22_050), 22_050) for plain, _, rate in said]
    rows, unmarked, others = [], [], []
    for name, attack in {**ATTACKS, "made at 22,050 Hz": ATTACKS["none"], **HARDER}.items():
        if name.startswith("made"):
            row, without, by_other_keys = attacked(
                [(one, marked(one, rate), rate) for one, rate in at_22k], name, attack
            )
        else:
            row, without, by_other_keys = attacked(said, name, attack)
        rows.append(row)
        unmarked += without
        others += by_other_keys
        note({"attacks": rows, "unmarked": chance_of(unmarked), "unmarked_other_keys": chance_of(others)})


def sounds() -> Row:
    """Scores of sounds that are not speech of mini, with the key and with other keys."""
    scores: dict[str, list[float]] = {}
    for name, samples, rate in other_sounds():
        found = contrasts(np.asarray(samples, np.float32), rate)
        scores.setdefault(name, []).extend(match(found, key) for key in (KEY, *OTHER_KEYS))
    return {
        name: {"scores": len(one), "passed": sum(score >= THRESHOLD for score in one), "most": max(one)}
        for name, one in scores.items()
    }


def main() -> None:
    """Run the parts. The JSON file keeps figures of other runs, and is written whenever a figure is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speech", type=Path, default=Path("build/watermark"))
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    report: Row = json.loads(given.json.read_text(encoding="utf-8")) if given.json and given.json.exists() else {}

    def note(found: Row) -> None:
        report.update(found)
        if given.json:
            given.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    note({"command": "python -m benchmarks.watermark --json FILE", "hardware": processor(), "depth_db": DEPTH_DB})
    note({"key": KEY.decode(), "threshold": THRESHOLD, "clip_s": CLIP_S})
    spoken = [(text, plain, marked(plain, rate), rate) for _, text, plain, rate in speech(given.speech)]
    spoken = spoken[:: max(1, len(spoken) // given.limit)]
    few = spoken[:: max(1, len(spoken) // WORDS_HEARD)]
    parts = {
        "quality": lambda: quality([one[1:] for one in few]),
        "processor_seconds_per_second": lambda: cost([one[1:] for one in few]),
        "words": lambda: words(few),
        "sounds": sounds,
    }
    if "attacks" in given.only:
        all_attacks(spoken, note)
    for name in given.only:
        if name in parts:
            note({name: parts[name]()})
    print(json.dumps({key: value for key, value in report.items() if key != "attacks"}, indent=1))


if __name__ == "__main__":
    main()
