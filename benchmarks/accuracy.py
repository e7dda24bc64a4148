"""Measures the errors of float32, float16 and bfloat16 against recorded float32 tensors, on this machine's device.

    python -m benchmarks.accuracy REFERENCE CHECKPOINT [--json FILE]

REFERENCE: a folder of goldens (see docs/parity.md), of which `goldens/v2-full/full.npz` is read. CHECKPOINT: the folder
of the model that made the reference. The language model gets the recorded tokens as input, so that every step can be
compared, even if rounding would have changed an earlier token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.lm_stage import LMStage, plain_run
from vivavoce.engine.lm_stage.slots import SamplingState
from vivavoce.engine.request import Conditioning, SamplingParams, SegmentRequest
from vivavoce.models.build import Models, build_models

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Arrays = dict[str, np.ndarray]


class Dictated:
    """A chooser that returns the recorded tokens, and keeps the model's scores for each of them."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens
        self.scores: list[Tensor] = []

    def __call__(self, scores: Tensor, state: SamplingState) -> Tensor:
        """The recorded token of this position, whatever the scores."""
        self.scores.append(scores[0].clone())
        return self._tokens[state.counts.clamp(max=len(self._tokens) - 1)]


def language_model(models: Models, arrays: Arrays) -> dict[str, float]:
    """Errors of log-probabilities, and how often the best token is the recorded one."""
    theirs = torch.from_numpy(arrays["llm/tokens"]).long().to(models.device)
    prompt = Conditioning(torch.zeros(0), _ids(arrays["llm/prompt_text"]), _ids(arrays["llm/prompt_speech"]))
    request = SegmentRequest(prompt, text=_ids(arrays["llm/text"]), sampling=SamplingParams(exact_tokens=len(theirs)))
    chooser = Dictated(theirs)
    stage = LMStage(models, slots=8, capacity=256, chooser=chooser)
    slot = stage.open(request.sampling, request.seed)
    stage.prefill({slot: plain_run(models.config.lm, request, official=True, room=None)})
    while stage.decoding:
        stage.collect(wait=True)
        stage.decode()
    scores = torch.stack(chooser.scores[: len(theirs)]).cpu()
    ids = torch.from_numpy(arrays["llm/top10_ids"]).long()
    error = (scores.gather(1, ids) - torch.from_numpy(arrays["llm/top10_logp"])).abs()
    best = scores[:, : models.config.lm.vocabulary.num_speech_tokens].argmax(-1)
    return {
        "lm_logp_error_mean": float(error.mean()),
        "lm_logp_error_max": float(error.max()),
        "lm_same_best_share": float((best == theirs.cpu()).float().mean()),
    }


def flow(models: Models, arrays: Arrays) -> dict[str, float]:
    """Relative errors (rms) of mels, of the whole utterance and of the official first chunk."""
    voice = Conditioning(
        torch.from_numpy(arrays["llm/embedding"]),
        flow_tokens=torch.from_numpy(arrays["flow/prompt_token"]).long(),
        flow_mel=torch.from_numpy(arrays["flow/prompt_feat"]),
    )
    tokens = _ids(arrays["flow/token"])
    lookahead = models.config.flow.encoder.lookahead
    found = {}
    for case, attention, hop in (
        ("offline", AttentionMode.FULL, len(tokens)),
        ("chunk", AttentionMode.GRID, len(tokens) - lookahead),
    ):
        stage = FlowStage(models, state_bytes=0)
        job = stage.start([FlowRow(stage.open(voice), tokens, hop, attention)])
        while job.steps_left:
            job.step()
        (mel,) = job.result()
        assert mel is not None
        ours = mel.T.float().cpu().numpy()
        theirs = [arrays[f"flow/{case}/mel_{end}"] for end in ("first8", "last8")]
        found[f"flow_{case}_mel_error"] = _relative(np.hstack((ours[:, :8], ours[:, -8:])), np.hstack(theirs))
    return found


def vocoder(models: Models, arrays: Arrays) -> dict[str, float]:
    """Relative error (rms) of the waveform, whose phase depends on sums of the pitch."""
    mel = torch.from_numpy(arrays["hift/mel"])[None].to(models.device)
    wave = models.vocoder.decode(mel, models.vocoder.source(models.vocoder.f0(mel, None), None))[0].cpu().numpy()
    ours = np.concatenate((wave[:4000], wave[-1000:]))
    return {
        "vocoder_wave_error": _relative(
            ours, np.concatenate([arrays["hift/wave_first4000"], arrays["hift/wave_last1000"]])
        )
    }


@torch.inference_mode()
def measure(reference: Path, checkpoint: Path, device: torch.device) -> list[dict[str, Any]]:
    """A row of errors for each dtype."""
    (golden,) = reference.glob("goldens/v2-full/full.npz")
    arrays = dict(np.load(golden))
    rows: list[dict[str, Any]] = []
    for name, dtype in DTYPES.items():
        models = build_models(checkpoint, device, dtype)
        rows.append(
            {"dtype": name, **language_model(models, arrays), **flow(models, arrays), **vocoder(models, arrays)}
        )
    return rows


def _ids(array: np.ndarray) -> tuple[int, ...]:
    return tuple(array.reshape(-1).tolist())


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean()))


def main() -> None:
    """Print a table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = measure(given.reference, given.checkpoint, device)
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    for row in rows:
        print(
            "  ".join(
                f"{key} {value if isinstance(value, str) else format(value, '.2e')}" for key, value in row.items()
            )
        )
    if given.json:
        given.json.write_text(json.dumps({"hardware": hardware, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
