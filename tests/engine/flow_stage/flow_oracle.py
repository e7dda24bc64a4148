"""What the flow stage must compute, the plain way: whole rows, masks written out, one evaluation after the other."""

from __future__ import annotations

from collections import Counter

import torch

from vivavoce.checkpoint.config import DiTConfig
from vivavoce.engine.flow_stage import AttentionMode, FlowRow, FlowStage
from vivavoce.engine.request import Conditioning, FlowSteps
from vivavoce.models.flow import model as flow_model
from vivavoce.models.flow.model import fixed_noise, time_steps
from vivavoce.models.flow.unet import VelocityContext


def voice(prompt, seed=0):
    """A voice of random features with so many prompt tokens."""
    generator = torch.Generator().manual_seed(1000 * prompt + seed)
    return Conditioning(
        embedding=torch.randn(192, generator=generator),
        flow_tokens=torch.randint(0, 6561, (prompt,), generator=generator),
        flow_mel=torch.randn(2 * prompt, 80, generator=generator) if prompt else torch.zeros(0, 0),
    )


def speech(count, seed=3):
    """Speech tokens."""
    return torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def bounds_of(prompt, hops, encoder):
    """Ends of the blocks of a prompt and hops, in tokens."""
    bounds = []
    for end in (max(0, prompt - encoder.lookahead), *(prompt + sum(hops[: i + 1]) for i in range(len(hops)))):
        start = bounds[-1] if bounds else 0
        count = -(-(end - start) // encoder.chunk)
        bounds += [start + (end - start) * (place + 1) // count for place in range(count)]
    return bounds


def mel_of(models, conditioning, tokens, hops, steps=FlowSteps.OFFICIAL):
    """Mel [frames, bins] of all hops, block by block; `tokens` after the last hop are its lookahead."""
    flow, config = models.flow, models.config.flow
    up, prompt = config.encoder.upsampling, len(conditioning.flow_tokens)
    bounds = bounds_of(prompt, hops, config.encoder)
    end = bounds[-1]
    row = torch.tensor([*conditioning.flow_tokens.tolist(), *tokens])[: end + config.encoder.lookahead]
    mask = torch.zeros(end, end, dtype=torch.bool)
    for position in range(end):
        mask[position, : min(bound for bound in bounds if bound > position)] = True
    wide = mask.repeat_interleave(up, 0).repeat_interleave(up, 1)[None, None]
    mu = flow.encoder.encode(flow.token_embedding(row)[None], torch.tensor([len(row)]), end, (mask[None, None], wide))
    condition = torch.zeros_like(mu)
    if prompt:
        condition[0, : prompt * up] = conditioning.flow_mel
    speaker = flow.speaker(conditioning.embedding[None])
    point = fixed_noise(config.num_mel_bins)[None, : end * up]

    def velocity(t, point):
        conditional = _velocity(flow.estimator, t, wide, point, mu, speaker, condition)
        free = _velocity(flow.estimator, t, wide, point, 0 * mu, 0 * speaker, 0 * condition)
        return (1 + config.guidance) * conditional - config.guidance * free

    fast = steps is FlowSteps.FAST
    for t, dt in time_steps(flow_model.FAST_STEPS if fast else config.num_steps):
        slope = velocity(t, point)
        point = point + dt * (velocity(t + dt / 2, point + dt / 2 * slope) if fast else slope)
    return point[0, prompt * up :]


def run(stage, work):
    """Start a batch and take all of its steps."""
    job = stage.start(work)
    while job.steps_left:
        job.step()
    return job.result()


def say(stage, stream, tokens, hop, attention=AttentionMode.BLOCKS):
    """One chunk by itself."""
    (mel,) = run(stage, [FlowRow(stream, tokens, hop, attention)])
    return mel


def speak(stage, stream, tokens, hops):
    """All chunks of a stream, one after the other, each with the usual lookahead."""
    return torch.cat([say(stage, stream, tokens[: stream.spoken + hop + 3], hop) for hop in hops])


def check(mel, expected):
    torch.testing.assert_close(mel, expected, atol=1e-4, rtol=0)


def stage_of(models, pages, **options):
    """A stage with so many pages, and the one that nothing is read from."""
    size = sum(buffer.page_bytes for buffer in FlowStage(models, state_bytes=0, **options).pool.buffers)
    stage = FlowStage(models, state_bytes=(pages + 1) * size, **options)
    assert stage.pool.total == pages
    return stage


def forget(stage):
    """Drop the prompts that no stream uses, or if all are in use the streams' state; it is computed again."""
    unused = stage.prompts.unused()
    for one in unused:
        stage.prompts.drop(one)
    for stream in () if unused else stage._streams:
        stage.drop_state(stream)


def check_pages(stage):
    """Every page is free, or held by exactly those who say so."""
    rows = [row.after for batch in stage._batches for row in batch.rows]
    states = [*(stream.state for stream in stage._streams), *stage.prompts.states.values(), *rows]
    held, pool = Counter(page for state in states if state for page in state.pages), stage.pool
    assert held == pool.holders
    assert sorted((*held, *pool.free)) == list(range(1, pool.total + 1))


def page_bytes(models):
    """What a page of state takes, counted from the networks' sizes."""
    config, itemsize = models.config.flow, 4
    encoder, unet = config.encoder, config.estimator
    frames = encoder.chunk * encoder.upsampling
    if isinstance(unet, DiTConfig):
        keys = config.num_steps * 2 * unet.num_blocks * frames * 2 * unet.num_heads * unet.head_dim
        tails = config.num_steps * 2 * 30 * 2 * unet.size + 2 * encoder.channels
        return (keys + tails) * itemsize
    levels = unet.num_mid_blocks + 2
    keys = config.num_steps * levels * unet.num_blocks * 2 * frames * 2 * unet.num_heads * unet.head_dim
    keys += (encoder.num_blocks * encoder.chunk + encoder.num_up_blocks * frames) * 2 * encoder.hidden_size
    inputs = unet.in_channels + 2 * unet.channels + (2 * levels - 2) * unet.channels + 3 * unet.channels
    tails = config.num_steps * 2 * 2 * inputs + (2 + 4) * encoder.hidden_size
    return (keys + tails) * itemsize


def _velocity(estimator, t, mask, point, mu, speaker, condition):
    features = torch.cat((point, mu, speaker[:, None].expand_as(mu), condition), dim=-1)
    return estimator.velocity(features, VelocityContext(estimator.time_biases(torch.tensor([t])), mask))


def perform(stage, opened, tokens, schedule, compute=run, ahead=3):
    """Mels of all streams, whose hops and whose batches, each with what happens before it, the schedule tells.

    compute: turns a batch's work into mels; ahead: tokens known beyond each hop.
    """
    streams, batches = schedule
    mels = [[] for _ in streams]
    for batch, event in batches:
        work = []
        for place in batch:
            hop, stream = streams[place][1][len(mels[place])], opened[place]
            work.append(FlowRow(stream, tokens[: stream.spoken + hop + ahead], hop, AttentionMode.BLOCKS))
        if event == "prompts":
            lacking = [FlowRow(stream) for stream in opened if stage.lacks_prompt(stream)]
            run(stage, lacking or [FlowRow(opened[0])])
        elif event == "evict":
            forget(stage)
        elif event == "abandon":
            job = stage.start(work)
            job.step()
            job.abandon()
        for place, mel in zip(batch, compute(stage, work), strict=True):
            mels[place].append(mel)
        check_pages(stage)
    return [torch.cat(made) for made in mels]
