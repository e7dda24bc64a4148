"""Many utterances' figures in one flat table of keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vivavoce.evaluate.edits import Edits
from vivavoce.evaluate.error_rate import ErrorRate, mean_interval, pooled
from vivavoce.evaluate.joins import JoinClicks
from vivavoce.evaluate.utterance import Recognition, Utterance


def summarise(utterances: Sequence[Utterance], clicks: JoinClicks | None = None) -> dict[str, Any]:
    """The keys of docs/evaluation.md for some utterances; a key is absent where nothing was measured.

    clicks: the joins of these utterances against the run's whole speech.
    """
    return {
        "utterances": len(utterances),
        **_recognition(utterances),
        **_speakers(utterances),
        **_lengths(utterances),
        **_sounds(utterances),
        **_speed(utterances),
        **_clicks(clicks),
    }


def _recognition(utterances: Sequence[Utterance]) -> dict[str, Any]:
    found = [utterance.recognition for utterance in utterances if utterance.recognition is not None]
    if not found:
        return {}
    keys: dict[str, Any] = {"unknown_units": sum(len(one.unknown) for one in found)}
    for unit, name in (("word", "wer"), ("character", "cer")):
        of_unit = [one for one in found if one.unit == unit]
        keys |= _edits(f"{name}_free", [one.free for one in of_unit])
        keys |= _edits(f"{name}_closed", [one.closed for one in of_unit if one.closed is not None])
    return keys | _phones(found)


def _edits(name: str, edits: Sequence[Edits]) -> dict[str, Any]:
    if not sum(edit.total for edit in edits):
        return {}
    return {
        **_rate(name, pooled([(edit.errors, edit.total) for edit in edits])),
        f"{name}_substitutions": sum(edit.substitutions for edit in edits),
        f"{name}_deletions": sum(edit.deletions for edit in edits),
        f"{name}_insertions": sum(edit.insertions for edit in edits),
    }


def _phones(found: Sequence[Recognition]) -> dict[str, Any]:
    counts = [(one.phone_errors, one.num_phones) for one in found if one.heard_phones is not None]
    return _rate("per", pooled(counts)) if sum(total for _, total in counts) else {}


def _rate(name: str, rate: ErrorRate) -> dict[str, Any]:
    return {
        name: rate.rate,
        f"{name}_low": rate.low,
        f"{name}_high": rate.high,
        f"{name}_errors": rate.errors,
        f"{name}_total": rate.total,
    }


def _speakers(utterances: Sequence[Utterance]) -> dict[str, Any]:
    keys = _mean("speaker_similarity", (utterance.speaker_similarity for utterance in utterances))
    compared = [utterance for utterance in utterances if utterance.nearest_voice is not None]
    if compared:
        keys |= _mean("identification_rate", (float(one.nearest_voice == one.voice) for one in compared))
        keys["identification_chance"] = float(np.mean([1 / one.num_references for one in compared]))
    return keys


def _lengths(utterances: Sequence[Utterance]) -> dict[str, Any]:
    sounds = [utterance.sound for utterance in utterances]
    return {
        "duration_total_s": sum(sound.duration_s for sound in sounds),
        **_median("s_per_character", (sound.s_per_character for sound in sounds)),
        **_median("length_ratio", (sound.length_ratio for sound in sounds)),
        "runaways": sum(utterance.runaway is not None for utterance in utterances),
    }


def _sounds(utterances: Sequence[Utterance]) -> dict[str, Any]:
    sounds = [utterance.sound for utterance in utterances]
    return {
        "silence_ratio": float(np.mean([sound.silence_ratio for sound in sounds])),
        "longest_silence_s": max(sound.longest_silence_s for sound in sounds),
        **_median("f0_p05_hz", (sound.f0_p05_hz for sound in sounds)),
        **_median("f0_p50_hz", (sound.f0_p50_hz for sound in sounds)),
        **_median("f0_p95_hz", (sound.f0_p95_hz for sound in sounds)),
        "voiced_share": float(np.mean([sound.voiced_share for sound in sounds])),
        "clipping_share": float(np.mean([sound.clipping_share for sound in sounds])),
        "clipped_utterances": sum(sound.clipping_share > 0 for sound in sounds),
    }


def _speed(utterances: Sequence[Utterance]) -> dict[str, Any]:
    waits = [utterance.sound.first_audio_s for utterance in utterances if utterance.sound.first_audio_s is not None]
    return {
        **_median("rtf", (utterance.sound.rtf for utterance in utterances)),
        **_median("first_audio_s", waits),
        **({"first_audio_p95_s": float(np.quantile(waits, 0.95))} if waits else {}),
    }


def _clicks(clicks: JoinClicks | None) -> dict[str, Any]:
    if clicks is None:
        return {}
    ratios = {"join_worst_ratio": clicks.worst_ratio, "join_median_ratio": clicks.median_ratio}
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    return {"joins": clicks.joins, "joins_over": clicks.over, **known}


def _median(name: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {name: float(np.median(known))} if known else {}


def _mean(name: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    if not known:
        return {}
    mean = mean_interval(known)
    return {name: mean.value, f"{name}_low": mean.low, f"{name}_high": mean.high}
