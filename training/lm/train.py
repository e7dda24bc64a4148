"""One training step of the language model, and the whole training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from training.lm.sequences import IGNORED, SPEECH, TEXT, Rows
from training.loop import Budget, Optimizer, Recipe, train
from vivavoce.models.lm.qwen2 import SpeechLM


@dataclass(frozen=True)
class LMRecipe:
    """What the language model's training is made of."""

    optimizer: Recipe = field(default_factory=lambda: Recipe(1e-3, warmup_steps=500, weight_decay=0.05))
    positions_per_step: int = 24_576
    dropout: float = 0.1
    token_noise: float = 0.1
    """Up to this share of a row's speech tokens is replaced by random ones at the input."""
    label_smoothing: float = 0.05


@dataclass(frozen=True, eq=False)
class _Bucket:
    """Rows of one length on the device."""

    kinds: Tensor
    ids: Tensor
    targets: Tensor
    batch: int


def train_lm(
    lm: SpeechLM,
    rows: Sequence[Rows],
    held: Sequence[Rows],
    budget: Budget,
    folder: Path,
    *,
    device: torch.device,
    recipe: LMRecipe,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Train on `rows`, measure on `held` (both as `build_rows` gives them) → averaged weights by our names."""
    torch.manual_seed(seed)
    lm.to(device).requires_grad_(True)
    buckets = [_bucket(one, recipe.positions_per_step, device) for one in rows if len(one)]
    positions = [len(one.kinds) * one.kinds.shape[1] for one in buckets]
    choose = _in_proportion(positions, seed)
    add_dropout(lm, recipe.dropout)
    optimizer = Optimizer(lm.parameters(), recipe.optimizer)

    def body(variant: int) -> dict[str, Tensor]:
        bucket = buckets[variant]
        pick = torch.randint(len(bucket.kinds), (bucket.batch,), device=device)
        kinds, ids, targets = bucket.kinds[pick], bucket.ids[pick].long(), bucket.targets[pick].long()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = _logits(
                lm, kinds, with_noise(ids, kinds, recipe.token_noise, lm.config.vocabulary.num_speech_tokens)
            )
        flat, wanted = logits.float().flatten(0, 1), targets.flatten()
        loss = cross_entropy(flat, wanted, ignore_index=IGNORED, label_smoothing=recipe.label_smoothing)
        optimizer.update(loss)
        return {"loss": loss, **_measures(flat.detach(), wanted)}

    checks = [_bucket(one, recipe.positions_per_step, device) for one in held if len(one)]

    def validate() -> dict[str, float]:
        sums = {"ce": 0.0, "right": 0.0}
        for bucket in checks:
            count = min(len(bucket.kinds), bucket.batch)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = _logits(lm, bucket.kinds[:count], bucket.ids[:count].long())
            for name, value in _measures(logits.float().flatten(0, 1), bucket.targets[:count].long().flatten()).items():
                sums[name] += float(value) / len(checks)
        return sums

    return train(
        "lm",
        body,
        {"lm": optimizer},
        {"lm": lm},
        budget,
        folder,
        device=device,
        variant=lambda step, progress: choose(step),
        averaged="lm",
        validate=validate if checks else None,
    )


def with_noise(ids: Tensor, kinds: Tensor, most: float, num_speech: int) -> Tensor:
    """Replace speech tokens by random ones; each row draws its own share up to `most`.

    A decode reads its own mistakes, a training sequence has none (Bengio et al., arXiv:1506.03099).
    """
    share = most * torch.rand(len(ids), 1, device=ids.device)
    noisy = (torch.rand(ids.shape, device=ids.device) < share) & (kinds == SPEECH)
    return torch.where(noisy, torch.randint_like(ids, num_speech), ids)


def add_dropout(lm: SpeechLM, share: float) -> None:
    """Drop what the layers' two branches add, in training mode only: at inference the modules know no dropout."""

    def drop(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return dropout(output, share, module.training)

    for name, module in lm.named_modules():
        if name.endswith((".attention.o_proj", ".mlp")):
            module.register_forward_hook(drop)


def _logits(lm: SpeechLM, kinds: Tensor, ids: Tensor) -> Tensor:
    """kinds, ids: [batch, length]  →  [batch, length, logits]."""
    text = lm.text_embedding(ids.clamp(max=lm.config.text_vocab_size - 1))
    speech = lm.speech_embedding(ids)
    control = lm.control_embedding(ids.clamp(max=1))
    kinds = kinds[..., None]
    hidden = lm(torch.where(kinds == TEXT, text, torch.where(kinds == SPEECH, speech, control)))
    logits: Tensor = lm.speech_head(hidden)
    return logits


def _measures(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    counted = (targets != IGNORED).float()
    entropy = cross_entropy(logits, targets, ignore_index=IGNORED)
    right = ((logits.argmax(-1) == targets) * counted).sum() / counted.sum()
    return {"ce": entropy, "right": right}


def _bucket(rows: Rows, positions: int, device: torch.device) -> _Bucket:
    batch = max(1, positions // rows.length)
    kinds, ids, targets = (torch.from_numpy(array).to(device) for array in (rows.kinds, rows.ids, rows.targets))
    return _Bucket(kinds, ids, targets, batch)


def _in_proportion(weights: Sequence[int], seed: int) -> Callable[[int], int]:
    """A function that gives each place in proportion to its weight, the same for the same seed and step."""
    bounds = torch.tensor(weights, dtype=torch.float64).cumsum(0)

    def choose(step: int) -> int:
        draw = torch.rand(1, generator=torch.Generator().manual_seed(seed * 1_000_003 + step), dtype=torch.float64)
        return int(torch.searchsorted(bounds, draw * bounds[-1]))

    return choose
