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
from training.utterances import steps_in
from vivavoce.errors import InvalidRequest
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
    torch.manual_seed(seed + steps_in(folder, "lm"))
    step = Step(lm, rows, recipe, device)
    choose = _in_proportion(step.positions, seed)
    checks = _buckets(held, recipe.positions_per_step, device)
    return train(
        "lm",
        step,
        {"lm": step.optimizer},
        {"lm": lm},
        budget,
        folder,
        device=device,
        variant=lambda number, progress: choose(number),
        averaged="lm",
        validate=validation(lm, checks) if checks else None,
    )


class Step:
    """What `training.loop.train` calls; each variant is a length of rows. Raises InvalidRequest for no rows at all."""

    def __init__(self, lm: SpeechLM, rows: Sequence[Rows], recipe: LMRecipe, device: torch.device) -> None:
        self._lm, self._recipe = lm.to(device).requires_grad_(True), recipe
        self._buckets = _buckets(rows, recipe.positions_per_step, device)
        if not self._buckets:
            raise InvalidRequest("corpus: no utterance fits into a training row; cut the recordings to 15 s or less")
        add_dropout(lm, recipe.dropout)
        self.optimizer = Optimizer(lm.parameters(), recipe.optimizer)

    @property
    def positions(self) -> list[int]:
        """Of all rows of each variant."""
        return [bucket.kinds.numel() for bucket in self._buckets]

    def __call__(self, variant: int) -> dict[str, Tensor]:
        """One step on a fresh batch of rows of one length."""
        bucket = self._buckets[variant]
        pick = torch.randint(len(bucket.kinds), (bucket.batch,), device=bucket.kinds.device)
        kinds, ids, targets = bucket.kinds[pick], bucket.ids[pick].long(), bucket.targets[pick].long()
        num_speech = self._lm.config.vocabulary.num_speech_tokens
        logits = _logits(self._lm, kinds, with_noise(ids, kinds, self._recipe.token_noise, num_speech))
        flat, wanted = logits.flatten(0, 1), targets.flatten()
        loss = cross_entropy(flat, wanted, ignore_index=IGNORED, label_smoothing=self._recipe.label_smoothing)
        self.optimizer.update(loss)
        return {"loss": loss, **_measures(flat.detach(), wanted)}


def validation(lm: SpeechLM, checks: Sequence[_Bucket]) -> Callable[[], dict[str, float]]:
    """A function that measures cross-entropy and right guesses on the first batch of each of `checks`."""

    def measure() -> dict[str, float]:
        sums = {"ce": 0.0, "right": 0.0}
        for bucket in checks:
            count = min(len(bucket.kinds), bucket.batch)
            logits = _logits(lm, bucket.kinds[:count], bucket.ids[:count].long())
            for name, value in _measures(logits.flatten(0, 1), bucket.targets[:count].long().flatten()).items():
                sums[name] += float(value) / len(checks)
        return sums

    return measure


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
    """kinds, ids: [batch, length]  →  [batch, length, logits] float32."""
    kinds = kinds[..., None]
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
        # Each table is asked for every id, also for those of the other kinds.
        text, speech, control = (
            table(ids.clamp(max=table.num_embeddings - 1))
            for table in (lm.text_embedding, lm.speech_embedding, lm.control_embedding)
        )
        hidden = lm(torch.where(kinds == TEXT, text, torch.where(kinds == SPEECH, speech, control)))
        logits: Tensor = lm.speech_head(hidden)
    return logits.float()


def _measures(logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
    counted = (targets != IGNORED).float()
    entropy = cross_entropy(logits, targets, ignore_index=IGNORED)
    right = ((logits.argmax(-1) == targets) * counted).sum() / counted.sum()
    return {"ce": entropy, "right": right}


def _buckets(rows: Sequence[Rows], positions: int, device: torch.device) -> list[_Bucket]:
    """Those lengths of rows that there are, on the device; a batch has about `positions`, and one row at least."""
    buckets = []
    for one in rows:
        if len(one):
            kinds, ids, targets = (torch.from_numpy(array).to(device) for array in (one.kinds, one.ids, one.targets))
            buckets.append(_Bucket(kinds, ids, targets, max(1, positions // one.length)))
    return buckets


def _in_proportion(weights: Sequence[int], seed: int) -> Callable[[int], int]:
    """A function that gives each place in proportion to its weight, the same for the same seed and step."""
    bounds = torch.tensor(weights, dtype=torch.float64).cumsum(0)

    def choose(step: int) -> int:
        draw = torch.rand(1, generator=torch.Generator().manual_seed(seed * 1_000_003 + step), dtype=torch.float64)
        return int(torch.searchsorted(bounds, draw * bounds[-1]))

    return choose
