"""Vocoder: pitch, source, waveform, each with the golden of the step before."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch.nn.functional import pad

from tests.parity.check import Check, Skip, close, close_rms, guarded
from tests.parity.reference import Arrays, Golden, Reference
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import HiFT, SampledSource


@torch.inference_mode()
def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    vocoder = reference.models(*golden.checkpoint).vocoder
    if isinstance(vocoder, CausalHiFT):
        for array in golden.arrays.under(""):
            if array.endswith("/wave"):
                name = f"{golden.label} {array.removesuffix('/wave')}"
                yield from guarded(name, _causal(name, array.removesuffix("/wave"), golden.arrays, vocoder))
        return
    stored = {array.removesuffix("/mel") for array in golden.arrays.under("") if array.endswith("/mel")}
    for case in sorted(stored | set(golden.meta["cases"])):
        name = f"{golden.label} {case}"
        yield from guarded(name, _case(name, case, golden.arrays, vocoder))


def _case(name: str, case: str, arrays: Arrays, vocoder: HiFT) -> Iterator[Check]:
    mel = arrays.tensor(f"{case}/mel")[None]
    f0 = vocoder.f0(mel, None)
    noise = arrays.tensor(f"{case}/noise").float()[None] if f"{case}/noise" in arrays else None
    start = None
    if f"{case}/phase" in arrays:
        phase = arrays.tensor(f"{case}/phase")[None]
        # CosyVoice2's source never reads it.
        start = phase / (2 * math.pi) if isinstance(vocoder.source, SampledSource) else None
    if f"{case}/f0" in arrays:
        yield close(f"{name} f0", f0[0], arrays[f"{case}/f0"], 1e-2)
        exact = vocoder.source(arrays.tensor(f"{case}/f0")[None], noise, start)
        yield close(f"{name} source of golden f0", exact[0, 0], arrays[f"{case}/source"], 1e-4)
    source = vocoder.source(f0, noise, start)
    yield close(f"{name} source", source[0, 0], arrays[f"{case}/source"], 2e-2)
    wave = vocoder.decode(mel, source)[0]
    yield close(f"{name} wave", wave, arrays[f"{case}/wave"], 3e-2)
    yield close_rms(f"{name} wave rms", wave, arrays[f"{case}/wave"], 2e-3)
    given = arrays.tensor(f"{case}/source")[None, None]
    yield close(f"{name} wave of golden source", vocoder.decode(mel, given)[0], arrays[f"{case}/wave"], 5e-5)
    if f"{case}/cache_source" in arrays:
        kept = arrays.tensor(f"{case}/cache_source")
        given[..., : len(kept)] = kept
        theirs = arrays[f"{case}/wave_with_cache"]
        yield close(f"{name} wave with kept source", vocoder.decode(mel, given)[0], theirs, 5e-5)


def _causal(name: str, case: str, arrays: Arrays, vocoder: CausalHiFT) -> Iterator[Check]:
    """One call of the causal vocoder, with all of a mel or with what a stream has of it."""
    final = not case.endswith("finalize0")
    mel = arrays.tensor(f"{case.rpartition('/finalize')[0] or case}/mel")[None]
    noise = arrays.tensor(f"{case}/noise").float()[None] if f"{case}/noise" in arrays else None
    if f"{case}/phase" in arrays:
        arrays[f"{case}/phase"]  # the initial phase is never read by this generation's source
    f0, source, theirs = vocoder.f0(mel, None), arrays.tensor(f"{case}/source"), arrays[f"{case}/wave"]
    if f"{case}/f0" in arrays:
        pitch = arrays.tensor(f"{case}/f0")[None]
        yield close(f"{name} f0", f0[:, : pitch.shape[1]], pitch, 1e-2)
        exact = vocoder.source(pitch, None if noise is None else noise[:, : len(source)])
        yield close(f"{name} source of golden f0", exact[0, 0], source, 1e-4)
    # A call that is not final has a source for fewer frames, and gives fewer out: what it gives is the same.
    yield close(f"{name} source", vocoder.source(f0, noise)[0, 0, : len(source)], source, 2e-2)
    samples = mel.shape[2] * vocoder.config.samples_per_frame
    given = samples - (0 if final else vocoder.reach.after * vocoder.config.samples_per_frame)
    wave = vocoder.decode(mel, vocoder.source(f0, noise))[0, :given]
    yield close(f"{name} wave", wave, theirs, 3e-2)
    yield close_rms(f"{name} wave rms", wave, theirs, 2e-3)
    of_theirs = vocoder.decode(mel, pad(source, (0, samples - len(source)))[None, None])[0, :given]
    yield close(f"{name} wave of golden source", of_theirs, theirs, 5e-5)
