"""Compact goldens: first and last values of each stage, for sizes too large to store whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch.nn.functional import pad

from benchmarks.plain.flow import FlowInput, whole_mels, whole_mels_v1
from tests.parity.check import Check, Skip, close, equal_ids
from tests.parity.compare_flow import ENCODER, MEL
from tests.parity.reference import Golden, Reference
from tests.parity.stages import Greedy, ids_of, stage_mel
from vivavoce.engine.request import Conditioning, SegmentRequest
from vivavoce.models.build import Models
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce_training.whole_rows import encode
from vivavoce_v1.flow import FlowV1, WholeInput
from vivavoce_v1.lm import ConformerLM


@torch.inference_mode()
def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    models = reference.models(*golden.checkpoint)
    if "llm/tokens" in golden.arrays:
        yield from _lm(golden, models)
    if "flow/token" in golden.arrays:
        yield from _flow(golden, models)
    if "hift/mel" in golden.arrays:
        yield from _vocoder(golden, models)


def _lm(golden: Golden, models: Models) -> Iterator[Check]:
    arrays, vocabulary = golden.arrays, models.config.lm.vocabulary
    speaker = arrays.tensor("llm/embedding").reshape(-1) if isinstance(models.lm, ConformerLM) else None
    ids = (arrays.ids(f"llm/{name}") for name in ("prompt_text", "prompt_speech"))
    voice = Conditioning(torch.zeros(0), *ids, lm_embedding=speaker)
    request = SegmentRequest(voice, text=arrays.ids("llm/text"))
    theirs = arrays.ids("llm/tokens")
    sampler = Greedy(vocabulary.eos, None, candidates=vocabulary.num_speech_tokens)
    ours = list(islice(ids_of(models, request, sampler), len(theirs)))
    yield equal_ids(f"{golden.label} llm tokens", ours, theirs)
    scores = torch.stack(sampler.scores)[: len(theirs)]
    ids = torch.from_numpy(arrays["llm/top10_ids"]).long()
    yield close(f"{golden.label} llm top 10", scores.gather(1, ids), arrays["llm/top10_logp"], 1e-4)
    yield close(f"{golden.label} llm first scores", scores[0, ::16], arrays["llm/logp_step0_every16"], 1e-4)


def _flow(golden: Golden, models: Models) -> Iterator[Check]:
    arrays, flow = golden.arrays, models.flow
    if isinstance(flow, FlowV1):
        prompt, target, mel = (arrays.tensor(f"flow/{name}") for name in ("prompt_token", "token", "prompt_feat"))
        item = WholeInput(
            prompt.long(), target.long(), mel, flow.speaker(arrays.tensor("llm/embedding").view(1, -1))[0]
        )
        name, mu = f"{golden.label} flow/offline", flow.encode([item])[0].T
        yield from _mel(f"{name} mel", whole_mels_v1(flow, [item])[0].T, "flow/offline", golden)
        yield from _mu(name, mu, "flow/offline", golden)
        return
    tokens = torch.cat([arrays.tensor("flow/prompt_token"), arrays.tensor("flow/token")]).long()
    prompt, embedding = arrays.tensor("flow/prompt_feat"), arrays.tensor("llm/embedding")
    target = arrays.ids("flow/token")
    voice = Conditioning(embedding, flow_tokens=arrays.tensor("flow/prompt_token").long(), flow_mel=prompt)
    for case, chunked, final in (("flow/offline", False, True), ("flow/chunk", True, False)):
        name = f"{golden.label} {case}"
        mel = whole_mels(models.flow, [FlowInput(tokens, prompt, embedding, final)], chunked)[0].T
        yield from _mel(f"{name} mel", mel, case, golden)
        ours = stage_mel(models, voice, target, final, chunked).T
        yield from _mel(f"{name} stage's mel", ours, case, golden)
        mu, frames = encode(models.flow, tokens[None], torch.tensor([len(tokens)]), torch.tensor([final]), chunked)
        yield from _mu(name, mu[0, : int(frames)].T, case, golden)


def _mu(name: str, mu: torch.Tensor, case: str, golden: Golden) -> Iterator[Check]:
    """mu: [bins, frames]."""
    ends = torch.cat((mu[:, :4], mu[:, -4:]), dim=1)
    yield close(f"{name} mu, ends", ends, golden.arrays[f"{case}/mu_first4_last4"], ENCODER)
    yield _sum(f"{name} mu, mean magnitude", mu, golden.meta["cases"][case]["mu"], ENCODER)


def _mel(name: str, mel: torch.Tensor, case: str, golden: Golden) -> Iterator[Check]:
    """mel: [bins, frames]."""
    yield close(f"{name}, first frames", mel[:, :8], golden.arrays[f"{case}/mel_first8"], MEL)
    yield close(f"{name}, last frames", mel[:, -8:], golden.arrays[f"{case}/mel_last8"], MEL)
    yield _sum(f"{name}, mean magnitude", mel, golden.meta["cases"][case]["mel"], MEL)


def _vocoder(golden: Golden, models: Models) -> Iterator[Check]:
    if isinstance(models.vocoder, CausalHiFT):
        yield from _causal_vocoder("hift", True, golden, models.vocoder)
        yield from _causal_vocoder("hift/not_final", False, golden, models.vocoder)
        return
    arrays, vocoder, name = golden.arrays, models.vocoder, f"{golden.label} hift"
    mel = arrays.tensor("hift/mel")[None]
    f0 = vocoder.f0(mel, None)
    yield close(f"{name} f0", f0[0], arrays["hift/f0"], 1e-2)
    source = vocoder.source(arrays.tensor("hift/f0")[None], None)
    yield close(f"{name} source of golden f0", source[0, 0, :2000], arrays["hift/source_first2000"], 1e-4)
    wave = vocoder.decode(mel, source)[0]
    first, last = arrays["hift/wave_first4000"], arrays["hift/wave_last1000"]
    yield close(f"{name} wave, first samples", wave[: len(first)], first, 3e-2)
    yield close(f"{name} wave, last samples", wave[-len(last) :], last, 3e-2)
    yield _sum(f"{name} wave, mean magnitude", wave, golden.meta["cases"]["hift/"]["wave"], 2e-3)


def _causal_vocoder(case: str, final: bool, golden: Golden, vocoder: CausalHiFT) -> Iterator[Check]:
    arrays, name = golden.arrays, f"{golden.label} {case}"
    mel = arrays.tensor("hift/mel")[None]
    f0 = arrays.tensor(f"{case}/f0")[None]
    yield close(f"{name} f0", vocoder.f0(mel, None)[:, : f0.shape[1]], f0, 1e-2)
    # A call that is not final has a source for fewer frames: what hears the others is not given out.
    source = vocoder.source(pad(f0, (0, mel.shape[2] - f0.shape[1])), None)
    yield close(f"{name} source of golden f0", source[0, 0, :2000], arrays[f"{case}/source_first2000"], 1e-4)
    wave = vocoder.decode(mel, source)[0]
    wave = wave if final else wave[: -vocoder.reach.after * vocoder.config.samples_per_frame]
    first, last = arrays[f"{case}/wave_first4000"], arrays[f"{case}/wave_last1000"]
    yield close(f"{name} wave, first samples", wave[: len(first)], first, 3e-2)
    yield close(f"{name} wave, last samples", wave[-len(last) :], last, 3e-2)
    yield _sum(f"{name} wave, mean magnitude", wave, golden.meta["cases"][f"{case}/"]["wave"], 2e-3)


def _sum(name: str, ours: torch.Tensor, statistics: dict, tolerance: float) -> Check:
    count = int(np.prod(statistics["shape"]))
    return close(name, float(ours.double().abs().sum()) / count, statistics["abs_sum"] / count, tolerance)
