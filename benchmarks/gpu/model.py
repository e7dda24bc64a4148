"""The model to measure (random weights, a voice with a prompt of 3.5 s), timing on its device, facts of the machine."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import SPEAKERS
from vivavoce.checkpoint.spk2info import EMBEDDING_SIZE, NUM_MEL_BINS, SavedPrompt, SpeakerEntry, write_spk2info
from vivavoce.engine.request import Conditioning
from vivavoce.version import __version__
from vivavoce_bench.hardware import machine
from vivavoce_bench.random_checkpoint import (
    NUM_SPEECH_TOKENS,
    RELEASE,
    SizesOf,
    make_babble_checkpoint,
)

PROMPT_TOKENS, PROMPT_TEXT = 87, 20
"""Speech tokens of 3.5 s of reference, and text ids of its transcript, as in measurements of the official code."""
FRAMES_PER_TOKEN = 2


def make_model(folder: Path, sizes: SizesOf = RELEASE, generation: Generation = Generation.V2) -> Path:
    """Write the model to `folder`, unless it exists; takes a minute and 2.6 GB in the release's sizes."""
    if not folder.exists():
        make_babble_checkpoint(folder, generation, sizes=sizes)
    write_spk2info(folder / SPEAKERS, {"reader": _reader(generation)})
    return folder


def reader() -> Conditioning:
    """The voice of the model as input of the stages of CosyVoice 2 and 3."""
    entry = _reader(Generation.V2)
    prompt = entry.prompt
    assert prompt is not None
    text, tokens = tuple(prompt.text_ids.tolist()), tuple(prompt.llm_speech_tokens.tolist())
    return Conditioning(entry.embedding, text, tokens, prompt.flow_speech_tokens.long(), prompt.mel)


def _reader(generation: Generation) -> SpeakerEntry:
    generator = torch.Generator().manual_seed(0)
    count, ids, frames = PROMPT_TOKENS, NUM_SPEECH_TOKENS, PROMPT_TOKENS * FRAMES_PER_TOKEN
    if generation is Generation.V1:  # twice as many tokens in a second, and frames of 256 samples at 24 kHz
        count, ids, frames = 2 * PROMPT_TOKENS, 4096, 328
    tokens = torch.randint(ids, (count,), generator=generator, dtype=torch.int32)
    text = torch.randint(256, (PROMPT_TEXT,), generator=generator, dtype=torch.int32)
    # About the mean and spread of log-mel spectrograms of speech.
    mel = torch.randn(frames, NUM_MEL_BINS, generator=generator) * 2 - 6
    embedding = torch.randn(EMBEDDING_SIZE, generator=generator)
    return SpeakerEntry(embedding, SavedPrompt(text, tokens, tokens.clone(), mel))


def origin(module: str, device: torch.device, arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The first keys of every result file: the command, versions, commit and hardware.

    arguments: arguments of `module`; None: this process's.
    """
    command = shlex.join(("python", "-m", module, *(sys.argv[1:] if arguments is None else arguments)))
    return {"command": command, "vivavoce": __version__, "commit": _commit(), **machine(device)}


def _commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() or None


def device_ms(work: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Median milliseconds of `repeats` runs of `work`, each with an idle device before and after it."""
    taken = sorted(_once(work, device) for _ in range(repeats))
    return taken[len(taken) // 2]


def _once(work: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return (time.perf_counter() - begun) * 1e3
    torch.cuda.synchronize(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
