"""CosyVoice2's flow encoder in TorchScript, from our export or an official one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vivavoce.errors import CheckpointError
from vivavoce.models.layers import Memory
from vivavoce_runtimes.estimators import open_script


class ScriptEncoder:
    """Replaces `TokenEncoder` for rows without a past, one row at a time. dtype: of the file. An official file attends
    to the whole row, or by the official grid of chunks. CheckpointError: it cannot be loaded or run here.
    """

    def __init__(self, path: Path, network: Any, dtype: torch.dtype, *, trusted: bool) -> None:
        self._network, self._dtype = network, dtype
        self._own_dtype, device = network.mu_projection.weight.dtype, network.mu_projection.weight.device
        self._script = open_script(path, device, trusted=trusted)
        self._exact = hasattr(self._script, "encode")
        tokens = torch.zeros(1, 4, network.config.input_size, device=device, dtype=self._own_dtype)
        try:
            self.encode(tokens, torch.tensor([4], device=device), 4, (None, None))
        except Exception as error:  # TorchScript's errors have no common base class
            raise CheckpointError(
                f"{path.name} in {path.parent} does not run here ({' '.join(str(error).split())[-200:]}); export it "
                "again, on this device"
            ) from error

    def encode(
        self,
        x: Tensor,
        lengths: Tensor,
        size: int,
        masks: tuple[Tensor | None, Tensor | None],
        keys: int | None = None,
        past: Tensor | None = None,
        memory: tuple[Memory, Memory] | None = None,
        lookahead_ends: Tensor | None = None,
    ) -> Tensor:
        if memory is not None or len(x) != 1:
            raise ValueError("an exported encoder computes whole rows only, one by one")
        x, ahead, mask = x.to(self._dtype), self._network.config.lookahead, masks[0]
        if self._exact:
            x = pad(x, (0, 0, 0, size + ahead - x.shape[1]))
            ends = torch.full((1, size), size, device=x.device) if mask is None else mask[:, 0].sum(-1).expand(1, size)
            heard = lengths[:, None].expand(1, size) if lookahead_ends is None else lookahead_ends
            h = self._script.encode(x, lengths, ends.to(torch.int32), heard)
        else:
            # Official files take the whole lookahead or none.
            context = x[:, size : size + ahead]
            more = (context,) if context.shape[1] == ahead and int(lengths[0]) == size + ahead else ()
            chunked = mask is not None and mask.shape[2] > 1
            h, _ = self._script(x[:, :size], lengths.clamp(max=size), *more, streaming=chunked)
        return self._network.mu_projection(h.to(self._own_dtype))
