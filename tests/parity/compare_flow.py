"""Flow: fixed noise, time steps, speaker, encoder, estimator, mel in every streaming setting."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from benchmarks.plain.flow import FlowInput, whole_mels, whole_mels_v1
from tests.parity.check import Check, Skip, close, guarded
from tests.parity.reference import Golden, Reference
from tests.parity.stages import stage_mel
from vivavoce.engine.request import Conditioning
from vivavoce.models.build import Models
from vivavoce.models.flow.model import FlowSchedule, fixed_noise, time_steps
from vivavoce.models.flow.unet import VelocityContext
from vivavoce_training.whole_rows import encode, velocity
from vivavoce_v1.flow import FlowV1, WholeInput

MEL, ENCODER = 2e-4, 1e-4
_VARIANT = re.compile(r"streaming(\d)_finalize(\d)")


@torch.inference_mode()
def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    models = reference.models(*golden.checkpoint)
    yield from guarded(f"{golden.label} schedule", _schedule(golden, models))
    kind = _whole if isinstance(models.flow, FlowV1) else _case
    for case in golden.meta["cases"]:
        name = f"{golden.label} {case}"
        yield from guarded(name, kind(name, case, golden, models))
    if "estimator/x" in golden.arrays:
        yield from guarded(f"{golden.label} estimator", _estimator(golden, models))


def _schedule(golden: Golden, models: Models) -> Iterator[Check]:
    arrays = golden.arrays
    noise = fixed_noise(models.config.flow.num_mel_bins).T
    if "rand_noise/first_cols" in arrays:
        first, last = arrays["rand_noise/first_cols"], arrays["rand_noise/last_cols"]
        yield close(f"{golden.label} fixed noise, start", noise[:, : first.shape[1]], first, 0)
        yield close(f"{golden.label} fixed noise, end", noise[:, -last.shape[1] :], last, 0)
    if "t_span" in arrays:
        steps = time_steps(golden.meta["n_timesteps"])
        ends = [t + dt for t, dt in steps]
        yield close(f"{golden.label} schedule", [steps[0][0], *ends], arrays["t_span"], 1e-6)


def _case(name: str, case: str, golden: Golden, models: Models) -> Iterator[Check]:
    arrays, flow = golden.arrays, models.flow
    tokens = torch.cat([arrays.tensor(f"{case}/prompt_token"), arrays.tensor(f"{case}/token")]).long()
    prompt, embedding = arrays.tensor(f"{case}/prompt_feat"), arrays.tensor(f"{case}/embedding")
    if f"{case}/spks" in arrays:
        yield close(f"{name} speaker", flow.speaker(embedding[None])[0], arrays[f"{case}/spks"], ENCODER)
    if f"{case}/t_steps" in arrays:
        ours = [t for t, _ in time_steps(golden.meta["n_timesteps"])]
        yield close(f"{name} time steps", ours, arrays[f"{case}/t_steps"], 1e-6)
    target = arrays.ids(f"{case}/token")
    voice = Conditioning(embedding, flow_tokens=arrays.tensor(f"{case}/prompt_token").long(), flow_mel=prompt)
    for array in arrays.under(f"{case}/"):
        if not array.endswith("/mel"):
            continue
        variant = _VARIANT.search(array)
        chunked, final = (bool(int(flag)) for flag in variant.groups()) if variant else (False, True)
        prefix = array.removesuffix("/mel")
        label = f"{name} {variant.group() if variant else 'offline'}"
        item = FlowInput(tokens, prompt, embedding, final)
        yield close(f"{label} mel", whole_mels(flow, [item], chunked)[0].T, arrays[array], MEL)
        ours = stage_mel(models, voice, target, final, chunked)
        yield close(f"{label} stage's mel", ours.T, arrays[array], MEL)
        mu, frames = encode(flow, tokens[None], torch.tensor([len(tokens)]), torch.tensor([final]), chunked)
        mu = mu[0, : int(frames)]
        if f"{prefix}/mu" in arrays:
            yield close(f"{label} mu", mu.T, arrays[f"{prefix}/mu"], ENCODER)
        if f"{prefix}/x_after_step1_last4cols" in arrays:
            yield _first_step(
                f"{label} x after one step", models, mu, prompt, embedding, arrays[f"{prefix}/x_after_step1_last4cols"]
            )


def _whole(name: str, case: str, golden: Golden, models: Models) -> Iterator[Check]:
    """Two calls of one stream of CosyVoice 1: the second begins with the last tokens of the first."""
    arrays, flow = golden.arrays, models.flow
    prompt, mel = arrays.tensor(f"{case}/prompt_token").long(), arrays.tensor(f"{case}/prompt_feat")
    speaker = flow.speaker(arrays.tensor(f"{case}/embedding")[None])[0]
    yield close(f"{name} speaker", speaker, arrays[f"{case}/spks"], ENCODER)
    ours = [t for t, _ in time_steps(golden.meta["n_timesteps"])]
    yield close(f"{name} time steps", ours, arrays[f"{case}/t_steps"], 1e-6)
    first = WholeInput(prompt, arrays.tensor(f"{case}/token").long(), mel, speaker)
    yield close(f"{name} mu", flow.encode([first])[0].T, arrays[f"{case}/mu"], ENCODER)
    yield close(f"{name} mel", whole_mels_v1(flow, [first])[0].T, arrays[f"{case}/mel"], MEL)
    schedule, noise = FlowSchedule.euler(flow.estimator, models.config.flow.num_steps), fixed_noise(mel.shape[1])
    path, (kept,) = flow.begin([first], schedule, noise)
    yield close(f"{name} kept noise and mu", kept.permute(2, 0, 1), arrays[f"{case}/cache"], ENCODER)
    path.step(0)
    yield close(f"{name} x after one step", path.x[0, -4:].T, arrays[f"{case}/x_after_step1_last4cols"], ENCODER)
    second = WholeInput(prompt, arrays.tensor(f"{case}/second_token").long(), mel, speaker, kept)
    yield close(f"{name} second mel", whole_mels_v1(flow, [second])[0].T, arrays[f"{case}/second_mel"], MEL)


def _first_step(name: str, models: Models, mu, prompt, embedding, golden) -> Check:
    """The first of all steps: with t as in the whole solution, so not a solution in one step."""
    flow, frames = models.flow, len(mu)
    condition = torch.zeros_like(mu)
    condition[: len(prompt)] = prompt
    speaker = flow.speaker(embedding[None])
    (t, dt), guidance = time_steps(models.config.flow.num_steps)[0], models.config.flow.guidance
    noise = fixed_noise(mu.shape[1])[:frames]

    def guess(*conditions):
        return velocity(flow.estimator, noise[None], *conditions, torch.tensor([t]), torch.tensor([frames]), False)[0]

    nothing = torch.zeros_like(mu)[None]
    guided = (1 + guidance) * guess(mu[None], speaker, condition[None])
    guided = guided - guidance * guess(nothing, torch.zeros_like(speaker), nothing)
    return close(name, (noise + dt * guided)[-4:].T, golden, ENCODER)


def _estimator(golden: Golden, models: Models) -> Iterator[Check]:
    arrays = golden.arrays
    x, mu, cond = (arrays.tensor(f"estimator/{name}").transpose(1, 2) for name in ("x", "mu", "cond"))
    lengths = torch.full((len(x),), x.shape[1])
    if isinstance(models.flow, FlowV1):
        speaker = arrays.tensor("estimator/spks")[:, None].expand_as(mu)
        estimator = models.flow.estimator
        biases = estimator.time_biases(arrays.tensor("estimator/t"))
        out = estimator.velocity(torch.cat((x, mu, speaker, cond), dim=-1), VelocityContext(biases))
        yield close(f"{golden.label} estimator", out.transpose(1, 2), arrays["estimator/out_streaming0"], ENCODER)
        return
    for array in arrays.under("estimator/out_streaming"):
        chunked = array.endswith("1")
        speaker, t = arrays.tensor("estimator/spks"), arrays.tensor("estimator/t")
        out = velocity(models.flow.estimator, x, mu, speaker, cond, t, lengths, chunked)
        yield close(f"{golden.label} {array}", out.transpose(1, 2), arrays[array], ENCODER)
