"""End to end: text and recording in; tokens, chunks and waveform out, under the official rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.parity.check import Check, Skip, close, close_rms, equal, equal_ids, guarded
from tests.parity.compare_flow import MEL
from tests.parity.reference import Golden, Reference
from tests.parity.samplers import Greedy, GreedyWithFill
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.chunk_speaker import flow_item
from vivavoce.engine.request import StreamRequest, SynthesisRequest
from vivavoce.service.synthesizer import SpeakOptions, Synthesizer
from vivavoce.service.voices.voice import Voice

WAVE, WAVE_RMS = 5e-2, 5e-3


def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    for case, settings in golden.meta["cases"].items():
        name = f"{golden.label} {case}"
        if "note" in settings and "NOT golden" in settings["note"]:
            golden.arrays.used.update(golden.arrays.under(f"{case}/"))
            yield Skip(name, "recorded to show a quirk, by its own note no golden")
        else:
            yield from guarded(name, _case(name, case, settings, golden, reference))


def _sampler(settings: dict[str, Any], vocabulary) -> Greedy | GreedyWithFill:
    if "pieces" in settings:
        found = re.search(r"(\d+) decoded", settings.get("sampler", ""))
        stop_after = settings["stop_after"] if found is None else int(found.group(1))
        return GreedyWithFill(vocabulary.num_speech_tokens, vocabulary.eos, vocabulary.fill, stop_after)
    return Greedy(vocabulary.eos, settings["stop_after"], candidates=vocabulary.num_speech_tokens)


def _voice(settings: dict[str, Any], reference: Reference, synthesizer: Synthesizer) -> Voice:
    if "spk" in settings:
        return Voice(read_spk2info(synthesizer.folder / "spk2info.pt")[settings["spk"]].embedding, "")
    recording = reference.wav(settings["prompt_wav"])
    conversion = "source_wav" in settings  # for which the official code aligns nothing
    return synthesizer.extractor.extract(recording, settings.get("prompt_text", ""), align=not conversion)


def _case(name: str, case: str, settings: dict[str, Any], golden: Golden, reference: Reference) -> Iterator[Check]:
    vocabulary = reference.models(*golden.checkpoint).config.lm.vocabulary
    sampler = _sampler(settings, vocabulary)
    synthesizer = reference.synthesizer(*golden.checkpoint, sampler=sampler)
    voice = _voice(settings, reference, synthesizer)
    options = SpeakOptions(instruct=settings.get("instruct_text"), speed=settings.get("speed", 1.0))
    vocoder = synthesizer.pipeline.models.vocoder
    heard: list[torch.Tensor] = []
    decode = vocoder.decode

    def listen(mel, *rest):
        heard.append(mel[0].clone())
        return decode(mel, *rest)

    with mock.patch.object(vocoder, "decode", listen):
        if "pieces" in settings:
            requests, waves = [], _streamed(synthesizer, settings["pieces"], voice, options)
        elif "source_wav" in settings:
            speed = settings.get("speed", 1.0)
            requests = [synthesizer.conversion(reference.wav(settings["source_wav"]), voice, speed)]
            waves = _run(synthesizer, requests, settings)
        else:
            requests = synthesizer.requests(settings["text"], voice, options)
            waves = _run(synthesizer, requests, settings)
    given = requests[0].speech_tokens if requests else None
    tokens = given or [token for token in sampler.chosen if token < vocabulary.num_speech_tokens]
    yield equal_ids(f"{name} tokens", tokens, golden.arrays.ids(f"{case}/tokens"))
    yield from _waves(name, case, settings, golden, waves)
    yield equal(f"{name} vocoder frames", [m.shape[1] for m in heard], [c["hift_frames"] for c in settings["calls"]])
    for index, call in enumerate(settings["calls"]):
        if f"{case}/chunk{index}/flow_mel" in golden.arrays and len(requests) == 1:
            final = call["finalize"]
            item = flow_item(requests[0], tokens[: call["tokens_given"]], final)
            with torch.inference_mode():
                mel = synthesizer.pipeline.models.flow([item], call["flow_streaming"])[0]
            yield close(f"{name} chunk {index} mel", mel.T, golden.arrays[f"{case}/chunk{index}/flow_mel"], MEL)
            yield close(
                f"{name} chunk {index} vocoder mel", heard[index], golden.arrays[f"{case}/chunk{index}/hift_mel"], MEL
            )


def _run(synthesizer: Synthesizer, requests: list[SynthesisRequest], settings: dict[str, Any]) -> list[np.ndarray]:
    """One segment of the text after the other, as the official code speaks them."""
    pipeline = synthesizer.pipeline
    if settings.get("stream"):
        streams = (pipeline.stream(StreamRequest(request, ChunkPolicy.official())) for request in requests)
        return [chunk.samples for stream in streams for chunk in stream]
    return [pipeline.run([request]).utterances[0].samples for request in requests]


def _streamed(synthesizer: Synthesizer, pieces: list[str], voice: Voice, options: SpeakOptions) -> list[np.ndarray]:
    return [chunk.samples for chunk in synthesizer.stream(pieces, voice, options, ChunkPolicy.official())]


def _waves(name: str, case: str, settings: dict[str, Any], golden: Golden, waves: list[np.ndarray]) -> Iterator[Check]:
    arrays, joined = golden.arrays, np.concatenate(waves)
    sizes = [len(wave) for wave in waves]
    yield equal(f"{name} chunk sizes", sizes, settings["chunks"])
    if f"{case}/chunk_samples" in arrays:
        yield equal_ids(f"{name} chunk samples", sizes, arrays[f"{case}/chunk_samples"])
    if f"{case}/wave" in arrays:
        yield close(f"{name} wave", joined, arrays[f"{case}/wave"], WAVE)
        yield close_rms(f"{name} wave rms", joined, arrays[f"{case}/wave"], WAVE_RMS)
    statistics = settings["wave"]
    magnitude = float(np.abs(joined.astype(np.float64)).sum()) / len(joined)
    yield close(
        f"{name} wave, mean magnitude", magnitude, statistics["abs_sum"] / int(np.prod(statistics["shape"])), WAVE_RMS
    )
