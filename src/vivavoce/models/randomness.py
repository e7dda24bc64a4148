"""Random numbers as a pure function of (seed, stream, counter), and the sampling of ids with such numbers.

A request's noise must not depend on its batch, on the chunks of its audio or on the device. A generator with state
cannot guarantee this, but a hash of the number's place can (counter-based generators: Salmon et al., SC 2011). The hash
is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), in 64-bit integers that wrap around.

Ids are sampled by repetition-aware nucleus sampling (VALL-E 2, arXiv:2406.05370, section 4.2): a candidate is drawn
from the nucleus. If it occurs too often among the last tokens, another id is drawn from all ids except the candidate.
Callers pass the uniform numbers, one column for each of the two draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivavoce_kernels.layouts import NoiseStream

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def uniform(seeds: Tensor, stream: NoiseStream, counters: Tensor) -> Tensor:
    """Return uniform float32 numbers in (0, 1); seeds and counters are int64 and are broadcast together."""
    return _units(seeds, stream, counters, 40)[0]


def normal(seeds: Tensor, stream: NoiseStream, counters: Tensor) -> Tensor:
    """Return standard normal numbers (Box and Muller, 1958), one for each counter; shapes as in `uniform`."""
    first, second = _units(seeds, stream, counters, 40, 8)
    return torch.sqrt(-2.0 * torch.log(first)) * torch.cos(2.0 * math.pi * second)


def _units(seeds: Tensor, stream: NoiseStream, counters: Tensor, *shifts: int) -> list[Tensor]:
    """Return, for each shift, 24 bits of the hash as float32 in (0, 1); never 0, because `normal` takes the log."""
    x = seeds
    for summand in (torch.full_like(seeds, int(stream)), counters):
        x = x + summand * _GOLDEN
        for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
            # The mask makes the right shift logical: torch's shift keeps the sign.
            x = (x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))) * factor
    return [(((x >> shift) & 0xFFFFFF).float() + 0.5) * 2.0**-24 for shift in shifts]


@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters of each row. top_p: [batch] float32. top_k; window: number of last tokens in which repeats
    are counted; max_repeats: number of repeats from which another id is drawn: [batch] int64. most: see `nucleus`."""

    top_p: Tensor
    top_k: Tensor
    window: Tensor
    max_repeats: Tensor
    most: int | None = None


def nucleus(probabilities: Tensor, top_p: Tensor, top_k: Tensor, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Find the nucleus: the likeliest top_k ids, without ids for which the sum of all higher probabilities is top_p or
    more. probabilities: [batch, ids]; top_p, top_k: [batch] → ids by falling probability (equal ones by id), and their
    probabilities, 0 outside the nucleus; both [batch, most]. most: upper limit of top_k, by default its maximum."""
    size = probabilities.shape[-1]
    most = min(size, int(top_k.max()) if most is None else most)
    if probabilities.dtype == torch.float32:
        # `topk` gives equal keys in any order, so no two keys may be equal. The bits of floats ≥ 0 sort like the
        # floats; the lower bits of a key contain the id.
        backwards = torch.arange(size - 1, -1, -1, device=probabilities.device)
        keys = (probabilities.view(torch.int32).long() << 32) | backwards
        ids = size - 1 - (keys.topk(most, dim=-1).values & 0xFFFFFFFF)
    else:
        ids = probabilities.sort(dim=-1, descending=True, stable=True).indices[:, :most]
    ranked = probabilities.gather(-1, ids)
    # Add one probability after another, in their precision, to get the rounding of the official code: another order or
    # precision can move a sum across top_p.
    if ranked.device.type == "cpu":
        sums = torch.from_numpy(np.add.accumulate(ranked.numpy(), axis=1, dtype=ranked.numpy().dtype))
    else:
        # CUDA adds one value after another only along the outer of two dimensions: transpose, and repeat a single row.
        columns = ranked.t() if len(ranked) > 1 else ranked.t().expand(-1, 2)
        sums = columns.contiguous().cumsum(dim=0).t()[: len(ranked)]
    before = torch.zeros_like(ranked)
    before[:, 1:] = sums[:, :-1]
    rank = torch.arange(most, device=ranked.device)
    inside = (before < top_p[:, None]) & (rank < top_k[:, None]) | (rank == 0)
    return ids, ranked * inside


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw an index by weight for each row. weights: [batch, n] ≥ 0, not all 0; uniforms: [batch] in (0, 1)."""
    cumulative = weights.cumsum(dim=-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    index = (cumulative <= target).sum(dim=-1)
    # If rounding makes the target equal to the total, the last index with a weight above 0 is drawn.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(dim=-1)
    return torch.minimum(index, last)


def repeats(recent: Tensor, window: Tensor, candidate: Tensor) -> Tensor:
    """Count each candidate among the last `window` tokens → [batch] int64. recent: [batch, n] int64, newest last."""
    age = torch.arange(recent.shape[-1], 0, -1, device=recent.device)
    inside = age <= window[:, None]
    return ((recent == candidate[:, None]) & inside).sum(dim=-1)


def sample(scores: Tensor, recent: Tensor, settings: SamplingRows, uniforms: Tensor) -> Tensor:
    """Sample an id for each row → [batch] int64. scores: [batch, ids], logits or log-probabilities, −inf if forbidden.
    recent: see `repeats`. uniforms: [batch, 2], for the draw from the nucleus and for the fallback."""
    ids, weights = nucleus(scores.softmax(dim=-1), settings.top_p, settings.top_k, settings.most)
    first = ids.gather(-1, draw(weights, uniforms[:, 0])[:, None])[:, 0]
    repeated = repeats(recent, settings.window, first) >= settings.max_repeats
    if scores.device.type != "cpu":
        second = draw(fallback_probabilities(scores, first), uniforms[:, 1])
        return torch.where(repeated, second, first)
    # The fallback reads all ids and is slow. On a CPU, checking whether the fallback is needed takes no time.
    rows = repeated.nonzero()[:, 0]
    if len(rows):
        first[rows] = draw(fallback_probabilities(scores[rows], first[rows]), uniforms[rows, 1])
    return first


def fallback_probabilities(scores: Tensor, forbidden: Tensor) -> Tensor:
    """Return probabilities [batch, ids], 0 for each row's forbidden id. scores: [batch, ids]; forbidden: [batch]."""
    return scores.scatter(-1, forbidden[:, None], float("-inf")).softmax(dim=-1)
