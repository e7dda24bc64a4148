"""End to end: text and recording in; tokens, chunks and waveform out, under the official rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.plain.flow import FlowInput, whole_mels
from tests.parity.check import Check, Skip, close, close_rms, equal, equal_ids, guarded
from tests.parity.compare_flow import MEL
from tests.parity.reference import Golden, Reference
from tests.parity.stages import Greedy, GreedyWithFill, stage_mel
from vivavoce.api import Vivavoce
from vivavoce.checkpoint.spk2info import read_spk2info
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.handle import Handle
from vivavoce.engine.request import EngineRequest, SegmentRequest
from vivavoce.frontend.speech import SpeakOptions
from vivavoce.frontend.voices.voice import Voice
from vivavoce.models.build import Models
from vivavoce.models.flow.model import FlowSchedule, fixed_noise
from vivavoce.models.layers import PairRunner
from vivavoce_v1.flow import FlowV1, WholeInput

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


def _voice(settings: dict[str, Any], reference: Reference, synthesizer: Vivavoce) -> Voice:
    if "spk" in settings:
        return Voice(read_spk2info(synthesizer.front_end.folder / "spk2info.pt")[settings["spk"]].embedding, "")
    recording = reference.wav(settings["prompt_wav"])
    conversion = "source_wav" in settings  # for which the official code aligns nothing
    extractor = replace(synthesizer.front_end.extractor, as_recorded=True)
    return extractor.extract(recording, settings.get("prompt_text", ""), align=not conversion)


@dataclass
class Heard:
    """What came out of a case."""

    requests: list[SegmentRequest]
    """One for each segment; none where the text came in pieces."""
    tokens: list[int] = field(default_factory=list)
    waves: list[np.ndarray] = field(default_factory=list)
    mels: list[torch.Tensor] = field(default_factory=list)
    """[bins, frames] of each vocoder call."""

    def listen(self, handle: Handle) -> None:
        """Take all that a request gives."""
        self.waves.extend(chunk.samples for chunk in handle)
        for tokens in handle.result().tokens:
            self.tokens.extend(tokens)


def _case(name: str, case: str, settings: dict[str, Any], golden: Golden, reference: Reference) -> Iterator[Check]:
    models = reference.models(*golden.checkpoint)
    sampler = _sampler(settings, models.config.lm.vocabulary)
    with reference.synthesizer(*golden.checkpoint, chooser=sampler) as synthesizer:
        heard = _speak(synthesizer, settings, reference)
    yield equal_ids(f"{name} tokens", heard.tokens, golden.arrays.ids(f"{case}/tokens"))
    yield from _waves(name, case, settings, golden, heard.waves)
    frames = [mel.shape[1] for mel in heard.mels]
    yield equal(f"{name} vocoder frames", frames, _vocoder_frames(settings["calls"], models))
    if isinstance(models.flow, FlowV1):
        if len(heard.requests) == 1:
            yield from _whole_mels(name, case, settings["calls"], golden, models, heard)
        return
    for index, call in enumerate(settings["calls"]):
        if f"{case}/chunk{index}/flow_mel" in golden.arrays and len(heard.requests) == 1:
            label, golden_mel = f"{name} chunk {index}", golden.arrays[f"{case}/chunk{index}/flow_mel"]
            for maker, mel in _mels(models, heard.requests[0], heard.tokens[: call["tokens_given"]], call):
                yield close(f"{label} {maker}", mel.T, golden_mel, MEL)
            # All that came before, of which ours hears the end where that is enough.
            theirs = golden.arrays[f"{case}/chunk{index}/hift_mel"][:, -frames[index] :]
            yield close(f"{label} vocoder mel", heard.mels[index], theirs, MEL)


def _vocoder_frames(calls: list[dict[str, Any]], models: Models) -> list[int]:
    """Frames of each vocoder call: the golden's, of which the causal vocoder needs those that it can hear only."""
    frames = [call["hift_frames"] for call in calls]
    if models.vocoder.reach is None:
        return frames
    seen_again = sum(models.vocoder.reach)
    return [now if now <= before else min(now, now - before + seen_again) for before, now in pairwise([0, *frames])]


@torch.inference_mode()
def _whole_mels(
    name: str, case: str, calls: list[dict[str, Any]], golden: Golden, models: Models, heard: Heard
) -> Iterator[Check]:
    """The calls of CosyVoice 1's flow by the network alone, and what the engine's vocoder was given."""
    voice, flow, start, kept = heard.requests[0].conditioning, models.flow, 0, None
    schedule = FlowSchedule.euler(flow.estimator, models.config.flow.num_steps)
    prompt_mel = voice.flow_mel.reshape(-1, models.config.flow.num_mel_bins)
    for index, call in enumerate(calls):
        end = start + call["tokens_given"]
        tokens, speaker = torch.tensor(heard.tokens[start:end]), flow.speaker(voice.embedding[None])[0]
        item = WholeInput(voice.flow_tokens, tokens, prompt_mel, speaker, kept)
        path, (kept,) = flow.begin([item], schedule, fixed_noise(prompt_mel.shape[1]))
        for number in range(len(schedule)):
            path.step(number)
        start = end - models.config.flow.overlap
        if f"{case}/chunk{index}/flow_mel" in golden.arrays:
            label, theirs = f"{name} chunk {index}", golden.arrays[f"{case}/chunk{index}/flow_mel"]
            yield close(f"{label} mel", path.x[0, len(prompt_mel) :].T, theirs, MEL)
            yield close(f"{label} vocoder mel", heard.mels[index], golden.arrays[f"{case}/chunk{index}/hift_mel"], MEL)


@torch.inference_mode()
def _mels(
    models: Models, request: SegmentRequest, tokens: list[int], call: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """All mel up to a chunk's end: by the plain flow, and by the engine's stage."""
    final, chunked, voice = call["finalize"], call["flow_streaming"], request.conditioning
    row = torch.cat((voice.flow_tokens, torch.tensor(tokens, dtype=torch.int64)))
    yield "mel", whole_mels(models.flow, [FlowInput(row, voice.flow_mel, voice.embedding, final)], chunked)[0]
    yield "stage's mel", stage_mel(models, voice, tokens, final, chunked)


def _speak(synthesizer: Vivavoce, settings: dict[str, Any], reference: Reference) -> Heard:
    voice, speed = _voice(settings, reference, synthesizer), settings.get("speed", 1.0)
    # The official code takes pieces as they are; the natural reading would hold back the end of each.
    reading = "official" if "pieces" in settings else "natural"
    options = SpeakOptions(instruct=settings.get("instruct_text"), speed=speed, reading=reading)
    if "source_wav" in settings:
        heard = Heard([synthesizer.front_end.plan_conversion(reference.wav(settings["source_wav"]), voice, speed)])
    else:
        heard = Heard([] if "pieces" in settings else synthesizer.front_end.requests(settings["text"], voice, options))
    vocoder = synthesizer.engine.models.vocoder
    decode = vocoder.decode

    def listening(
        mel: torch.Tensor, source: torch.Tensor, lengths: torch.Tensor | None, both: PairRunner
    ) -> torch.Tensor:
        (one,) = mel
        heard.mels.append(one[:, : None if lengths is None else int(lengths)].clone())
        return decode(mel, source, lengths, both)

    with mock.patch.object(vocoder, "decode", listening):
        if "pieces" in settings:
            session = synthesizer.stream(settings["pieces"], voice, options=options, policy=ChunkPolicy.official())
            heard.listen(session.handle)
        policy = ChunkPolicy.official() if settings.get("stream") else None
        for request in heard.requests:  # one after the other, as the official code speaks them
            heard.listen(synthesizer.engine.submit(EngineRequest((request,), policy)))
    return heard


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
