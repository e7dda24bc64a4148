"""Measures each stage alone, as the engine runs it, beside its floor: the least time for its operations and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.model import device_ms
from vivavoce.checkpoint.config import LMConfig, qwen2_of
from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.lm_stage import LMStage, plain_run
from vivavoce.engine.request import Conditioning, SamplingParams, SegmentRequest
from vivavoce.engine.vocoder_stage import VocoderRow, VocoderStage
from vivavoce.models.build import Models
from vivavoce.models.flow.dit import DiT
from vivavoce.models.flow.unet import UNet
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import HiFT

BYTES_PER_S, FLOPS = 4.3e12, 788e12
"""Peak bandwidth and FLOP/s of one H200 (bf16, random data), measured with large copies and matrix products."""
TEXT, STEPS, REPEATS, TOGETHER = 40, 40, 3, 8

Figures = dict[str, Any]


@dataclass(frozen=True)
class FlowCase:
    """One shape of a flow batch: rows, new frames of each row, and earlier frames, which are read as state."""

    rows: int
    frames: int
    past: int = 0

    @property
    def name(self) -> str:
        """The name of the case in the figures."""
        return f"{self.rows}x{self.frames}" + (f"_past{self.past}" if self.past else "")


FLOW_CASES = (
    FlowCase(1, 30, 174),
    FlowCase(1, 100, 374),
    FlowCase(16, 100, 374),
    FlowCase(64, 100, 374),
    FlowCase(16, 674),
    FlowCase(32, 674),
)
VOCODER_CASES = ((1, 30), (1, 100), (32, 100), (32, 500), (128, 100))


@torch.inference_mode()
def decode(models: Models, voice: Conditioning, slots: Sequence[int], kernels: bool) -> Iterator[Figures]:
    """Milliseconds of a decode step, with sampling, for each number of used slots."""
    for count in slots:
        stage = LMStage(models, slots=count, capacity=1024, kernels=kernels)
        _read(stage, models, voice, count)
        for slot in range(count):
            stage.close(slot)
        prefill_ms, rows = _read(stage, models, voice, count)
        stage.decode()

        def steps(stage: LMStage = stage) -> None:
            for _ in range(STEPS):
                stage.decode()

        step_ms = device_ms(steps, models.device, REPEATS) / STEPS
        width = torch.finfo(models.dtype).bits // 8
        floor_ms = decode_bytes(qwen2_of(models.config.lm), count, rows + 2 * STEPS, width) / BYTES_PER_S * 1e3
        yield {
            f"decode_step_ms_{count}": step_ms,
            f"decode_step_floor_ms_{count}": floor_ms,
            f"prefill_ms_{min(TOGETHER, count)}": prefill_ms,
        }
        while stage.in_flight:
            stage.collect(wait=True)


def _read(stage: LMStage, models: Models, voice: Conditioning, count: int) -> tuple[float, int]:
    """Fill `count` slots; gives milliseconds of the first prefill, of up to `TOGETHER` prompts, and a prompt's rows."""
    sampling = SamplingParams(exact_tokens=400)
    request = SegmentRequest(voice, text=(1,) * TEXT, sampling=sampling)
    run, taken = plain_run(models.config.lm, request, official=False, room=None), []
    slots = [stage.open(sampling, seed) for seed in range(count)]
    for first in range(0, count, TOGETHER):
        runs = dict.fromkeys(slots[first : first + TOGETHER], run)
        taken.append(device_ms(partial(stage.prefill, runs), models.device, 1))
    while stage.in_flight:
        stage.collect(wait=True)
    return taken[0], len(run.rows)


@torch.inference_mode()
def flow(models: Models, voice: Conditioning, cases: Sequence[FlowCase], kernels: bool) -> Iterator[Figures]:
    """Milliseconds of the Euler steps of a batch, and of the whole batch with its encoder, for each case."""
    up = models.config.flow.encoder.upsampling
    prompt = len(voice.flow_tokens)
    largest = max(case.rows * (case.frames + case.past) for case in cases if case.past)
    per_frame = 2 * 2 * models.flow.estimator.memory_shape.sites * models.flow.estimator.memory_shape.key_channels
    state_bytes = int(1.3 * largest * per_frame * models.config.flow.num_steps) + (4 << 30)
    if models.device.type != "cuda":
        state_bytes = 64 << 20
    stage = FlowStage(models, state_bytes=state_bytes, kernels=kernels)
    for case in cases:
        timings: list[tuple[float, float]] = []
        for _ in range(REPEATS + 1):
            streams = [stage.open(voice) for _ in range(case.rows)]
            spoken = max(0, case.past // up - prompt)
            hop = case.frames // up - (0 if case.past else prompt)
            tokens = tuple(range(spoken + hop + 3))
            attention = AttentionMode.BLOCKS if case.past else AttentionMode.FULL
            if spoken:
                _solve(stage, [FlowRow(stream, tokens, spoken, attention) for stream in streams], models.device)
            elif case.past:
                _solve(stage, [FlowRow(streams[0], tokens, 1, attention)], models.device)
                stage.close(streams[0])
                streams[0] = stage.open(voice)
            chunks = [FlowRow(one, tokens if case.past else tokens[: spoken + hop], hop, attention) for one in streams]
            timings.append(_solve(stage, chunks, models.device))
            for stream in streams:
                stage.close(stream)
        steps_ms, whole_ms = (sorted(column)[len(column) // 2] for column in zip(*timings[1:], strict=True))
        operations = models.config.flow.num_steps * estimator_flops(
            models.flow.estimator, 2 * case.rows, case.frames, case.past
        )
        yield {
            f"flow_ms_{case.name}": whole_ms,
            f"flow_steps_ms_{case.name}": steps_ms,
            f"flow_steps_floor_ms_{case.name}": operations / FLOPS * 1e3,
            f"flow_tflops_{case.name}": operations / steps_ms / 1e9,
        }


def _solve(stage: FlowStage, chunks: Sequence[FlowRow], device: torch.device) -> tuple[float, float]:
    """Milliseconds of the steps, and of the whole batch."""
    parts: list[float] = []
    job = None

    def begin() -> None:
        nonlocal job
        job = stage.start(chunks)

    def steps() -> None:
        assert job is not None
        while job.steps_left:
            job.step()

    def result() -> None:
        assert job is not None
        job.result()

    parts = [device_ms(part, device, 1) for part in (begin, steps)]
    parts.append(device_ms(result, device, 1))
    return parts[1], sum(parts)


@torch.inference_mode()
def vocoder(models: Models, cases: Sequence[tuple[int, int]], kernels: bool) -> Iterator[Figures]:
    """Milliseconds of whole utterances, for each case of rows and frames, and audio seconds per second."""
    stage = VocoderStage(models, kernels=kernels)
    config = models.vocoder.config
    for rows, frames in cases:
        generator = torch.Generator().manual_seed(rows)
        mel = (torch.randn(rows, frames, config.num_mel_bins, generator=generator) - 3).to(models.device)
        streams = [stage.open(seed, 1.0, CrossfadeMode.SEAMLESS) for seed in range(rows)]

        def speak(streams: Sequence[Any] = streams, mel: torch.Tensor = mel) -> None:
            stage.run(
                [VocoderRow(stream, one, final=True, whole=True) for stream, one in zip(streams, mel, strict=True)]
            )

        speak()
        ms = device_ms(speak, models.device, REPEATS)
        audio_s = rows * frames * config.samples_per_frame / config.sample_rate
        yield {
            f"vocoder_ms_{rows}x{frames}": ms,
            f"vocoder_audio_s_per_s_{rows}x{frames}": audio_s / ms * 1e3,
            f"vocoder_floor_ms_{rows}x{frames}": vocoder_flops(models.vocoder, audio_s) / FLOPS * 1e3,
        }


def estimator_flops(estimator: UNet | DiT, rows: int, frames: int, past: int = 0) -> float:
    """Operations of the matrix products in one call of the flow's estimator; new frames attend to all frames of a row.

    rows: twice the streams, due to guidance; frames: new frames of each row; past: earlier frames, read as state.
    """
    # The time embedding is the same for all requests, and computed once.
    weights = sum(
        parameter.numel()
        for name, parameter in estimator.named_parameters()
        if parameter.dim() > 1 and "time" not in name and "modulation" not in name
    )
    attention = estimator.memory_shape.sites * estimator.memory_shape.key_channels
    return 2.0 * rows * frames * (weights + attention * (past + frames))


def decode_bytes(config: LMConfig, slots: int, positions: int, width: int) -> float:
    """Fewest bytes that a decode step reads: all weights once, and keys and values of every slot.

    positions: number of positions that a slot attends to; width: bytes of a number.
    """
    size, inner = config.hidden_size, config.num_heads * config.head_dim
    keys = 2 * config.num_kv_heads * config.head_dim
    layer = size * (2 * inner + keys) + 3 * size * config.intermediate_size
    ids = config.vocabulary.num_speech_tokens + len(config.vocabulary.stop_ids)
    weights = config.num_layers * layer + ids * size
    return width * (weights + float(slots) * positions * config.num_layers * keys)


def vocoder_flops(vocoder: HiFT | CausalHiFT, seconds: float) -> float:
    """Operations of the vocoder's convolutions for this much audio."""
    config = vocoder.config
    rate = config.sample_rate / config.samples_per_frame
    total = rate * (_weights(vocoder.f0) + vocoder.conv_pre.weight.numel())
    per_stage = len(config.resblock_kernels)
    for stage, factor in enumerate(config.upsample_rates):
        kernel, taps = config.upsample_kernels[stage], 1.0
        if isinstance(vocoder, CausalHiFT):
            # A kernel covers a repeated input several times, and multiplies it only once, by the sum of the weights.
            taps = factor * (1 + math.ceil((kernel - 1) / factor)) / kernel
        total += rate * taps * vocoder.ups[stage].weight.numel()  # type: ignore[operator]
        rate *= factor
        blocks = (*vocoder.resblocks[stage * per_stage : (stage + 1) * per_stage], vocoder.source_resblocks[stage])
        total += rate * (sum(map(_weights, blocks)) + vocoder.source_downs[stage].weight.numel())  # type: ignore[operator]
    return 2.0 * seconds * (total + rate * vocoder.conv_post.weight.numel())


def _weights(module: object) -> int:
    parameters = module.named_parameters()  # type: ignore[attr-defined]
    return sum(parameter.numel() for _, parameter in parameters if parameter.dim() > 1)
