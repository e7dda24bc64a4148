"""The networks of each model generation.

A new generation needs an entry here and one in `vivavoce.engine.generations`, which names its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.weights import (
    CONFORMER_LM_NAMES,
    DIT_FLOW_NAMES,
    FLOW_NAMES,
    LM_NAMES,
    VOCODER_NAMES,
    WHOLE_FLOW_NAMES,
    NameTable,
    fold_weight_norm,
)
from vivavoce.models.flow.model import MAX_FRAMES, Flow
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.vocoder.causal import CausalHiFT
from vivavoce.models.vocoder.hift import HiFT, SampledSource

__all__ = ["MAX_FRAMES", "NETWORKS", "NetworkPart"]


@dataclass(frozen=True)
class NetworkPart:
    """A network of a model. part: name of the weight file without its suffix. build: builds the network from a
    `ModelConfig`. names: table of parameter names. state: transforms the file's tensors before loading. float32:
    whether the network uses float32 even if the model has another dtype."""

    part: str
    build: Callable[[Any], nn.Module]
    names: NameTable
    state: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict
    float32: bool = False

    def outline(self, config: Any) -> nn.Module:
        with torch.device("meta"), _NothingDrawn():
            return self.build(config)


class _NothingDrawn(TorchFunctionMode):
    """Skips random initialisation, because on the meta device it makes torch import its compiler (140 MB)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        return given["tensor"] if func is nn.init.normal_ else func(*args, **given)


def _language_model_v1(config: Any) -> nn.Module:
    from vivavoce_v1.lm import ConformerLM

    return ConformerLM(config.lm)


def _flow_v1(config: Any) -> nn.Module:
    from vivavoce_v1.flow import FlowV1

    return FlowV1(config.flow, config.rates)


_QWEN = NetworkPart("llm", lambda config: SpeechLM(config.lm), LM_NAMES)
# The vocoder uses float32, because its phases grow to many thousand radians; this takes little time.
_vocoder = partial(NetworkPart, "hift", names=VOCODER_NAMES, state=fold_weight_norm, float32=True)
NETWORKS: dict[Generation, Mapping[str, NetworkPart]] = {
    Generation.V1: {
        "lm": NetworkPart("llm", _language_model_v1, CONFORMER_LM_NAMES),
        "flow": NetworkPart("flow", _flow_v1, WHOLE_FLOW_NAMES),
        "vocoder": _vocoder(build=lambda config: HiFT(config.vocoder, SampledSource, overlap=20)),
    },
    Generation.V2: {
        "lm": _QWEN,
        "flow": NetworkPart("flow", lambda config: Flow(config.flow), FLOW_NAMES),
        "vocoder": _vocoder(build=lambda config: HiFT(config.vocoder)),
    },
    Generation.V3: {
        "lm": _QWEN,
        "flow": NetworkPart("flow", lambda config: Flow(config.flow), DIT_FLOW_NAMES),
        "vocoder": _vocoder(build=lambda config: CausalHiFT(config.vocoder)),
    },
}
"""The networks of each generation, by the names of their fields in `Models`."""
