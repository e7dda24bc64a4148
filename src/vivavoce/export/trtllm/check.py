"""How far a checkpoint is from the model that it was made of: the logits of both on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.export.merged_lm import HEAD, TensorReader
from vivavoce.export.trtllm.backbone import Backbone, table_blocks
from vivavoce.export.trtllm.prompts import Prompt
from vivavoce.export.trtllm.reread import Reread
from vivavoce.export.trtllm.source import Source


@dataclass(frozen=True)
class LogitsCheck:
    """Over all positions that choose speech and all ids that can be chosen."""

    relative_error: float
    """The difference's size over that of the model's logits (Euclidean)."""
    largest_error: float
    top1_agreement: float
    """Share of the positions at which both prefer the same id."""
    num_positions: int


@torch.inference_mode()
def compare_logits(
    source: Source,
    checkpoint: Reread,
    prompts: Sequence[Prompt],
    layer_done: Callable[[], None] = lambda: None,
) -> LogitsCheck:
    """Run both models, one layer and one block of the head at a time; `layer_done` is called for each layer of each.

    The source runs in float32. The checkpoint runs with the weights that its engine would use and with what that
    engine rounds; its float products are float32 as well.
    """
    models = (
        Backbone(source.sizes, source.reader),
        Backbone(checkpoint.sizes, checkpoint, effects=checkpoint.effects),
    )
    exact, made = (_spoken(model.hidden_states(prompts, layer_done=layer_done), prompts) for model in models)
    best_exact, best_made = _Best(len(exact)), _Best(len(exact))
    squares, total, largest = 0.0, 0.0, 0.0
    for block in table_blocks(source.sizes):
        bias = torch.zeros(block.stop - block.start) if source.bias is None else source.bias[block]
        choosable = bias.isfinite()
        if not choosable.any():
            continue
        ids = torch.arange(block.start, block.stop)[choosable]
        wanted = _logits(exact, source.reader, block, choosable, bias)
        found = _logits(made, checkpoint, block, choosable, bias)
        error = found - wanted
        squares += error.double().square().sum().item()
        total += wanted.double().square().sum().item()
        largest = max(largest, error.abs().max().item())
        best_exact.see(wanted, ids)
        best_made.see(found, ids)
    agreement = (best_exact.ids == best_made.ids).double().mean().item()
    return LogitsCheck((squares / total) ** 0.5 if total else 0.0, largest, agreement, len(exact))


class _Best:
    """The id with the largest logit at each position, over blocks of ids."""

    def __init__(self, num_positions: int) -> None:
        self.values = torch.full((num_positions,), -torch.inf)
        self.ids = torch.full((num_positions,), -1)

    def see(self, logits: Tensor, ids: Tensor) -> None:
        """logits: [positions, ids]."""
        values, places = logits.max(dim=1)
        better = values > self.values
        self.values = torch.where(better, values, self.values)
        self.ids = torch.where(better, ids[places], self.ids)


def _spoken(hidden: Sequence[Tensor], prompts: Sequence[Prompt]) -> Tensor:
    return torch.cat([rows[prompt.spoken_from :] for rows, prompt in zip(hidden, prompts, strict=True)])


def _logits(hidden: Tensor, reader: TensorReader, block: slice, choosable: Tensor, bias: Tensor) -> Tensor:
    head = reader.read(HEAD, block).float()[choosable]
    return hidden @ head.t() + bias[choosable]
