"""What a client has to know of a served model, from the configuration that the server tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vivavoce.clients.triton.failures import ServerRefused

DEFAULT_SAMPLE_RATE = 24_000
"""Of a model whose configuration has no parameter `sample_rate`."""

WAVEFORM = "waveform"
"""The output that holds the audio: FP32 in ±1, [n] or [1, n]."""


@dataclass(frozen=True)
class ServedModel:
    """One model of a repository."""

    name: str
    decoupled: bool
    """It answers a request in chunks."""
    batched: bool
    """Its tensors have a batch dimension."""
    inputs: frozenset[str]
    sample_rate: int


def served_model(config: Mapping[str, Any]) -> ServedModel:
    """From a model's configuration as JSON, in Triton's field names; numbers may be strings.

    Raises:
        ServerRefused: the model gives no waveform.
    """
    name = str(config.get("name", ""))
    outputs = [str(output.get("name")) for output in config.get("output", ())]
    if WAVEFORM not in outputs:
        raise ServerRefused(
            f"model: {name!r} gives {', '.join(outputs) or 'nothing'} and no {WAVEFORM}; name one that speaks"
        )
    rate = config.get("parameters", {}).get("sample_rate", {}).get("string_value", "")
    return ServedModel(
        name=name,
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        batched=int(config.get("max_batch_size", 0)) > 0,
        inputs=frozenset(str(given.get("name")) for given in config.get("input", ())),
        sample_rate=int(rate) if str(rate).isdigit() and int(rate) > 0 else DEFAULT_SAMPLE_RATE,
    )
